"""Slow, obvious implementations, in plain loops, that the tests hold the package against."""

import itertools
import math

import numpy as np
from scipy.special import entr, softmax


def cals_penalty(z, multipliers, rho, margin):
    """The penalty of each class in a row of logits."""
    excess = (z.max() - z[z > -math.inf]) / margin - 1
    own = np.asarray(multipliers)[z > -math.inf]
    inside = own * excess + rho * excess**2 / 2
    return np.where(own + rho * excess >= 0, inside, -(own**2) / (2 * rho))


def cals_update(rows, multipliers, rho, margin):
    """The next multipliers of rows of logits, and the mean penalty of the present ones."""
    slopes, penalties = [], []
    for z in map(np.array, rows):
        slope = np.maximum(0, multipliers + rho * ((z.max() - z) / margin - 1))
        slopes.append(np.clip(slope, 1e-6, 1e6))
        penalties.append(cals_penalty(z, multipliers, rho, margin).sum())
    return np.mean(slopes, axis=0).tolist(), np.mean(penalties)


def ada_focal_update(conf, correct, gammas, rate, lowest, highest, switch):
    """Edges and gammas after a validation of distinct confidences, a multiple of the bins."""
    edges, result = [], []
    order = np.argsort(conf).reshape(len(gammas), -1)
    for gamma, inside in zip(gammas, order, strict=True):
        gap = np.mean([conf[i] - bool(correct[i]) for i in inside])
        gamma *= math.exp(rate * gap if gamma > 0 else -rate * gap)
        if abs(gamma) < switch:
            gamma = -switch if gamma > 0 else switch
        result.append(min(max(gamma, lowest), highest))
        edges.append(conf[inside[0]])
    return edges[1:], result


def bins_of_equal_width(conf, correct, num_bins=15):
    """Share of the samples, accuracy and mean confidence of each non-empty bin (lo, hi]."""
    bins = []
    for b in range(num_bins):
        inside = [
            i for i, p in enumerate(conf) if b / num_bins < p <= (b + 1) / num_bins or (b == p == 0)
        ]
        if inside:
            accuracy = sum(bool(correct[i]) for i in inside) / len(inside)
            confidence = math.fsum(conf[i] for i in inside) / len(inside)
            bins.append((len(inside) / len(conf), accuracy, confidence))
    return bins


def expected_calibration_error(conf, correct, num_bins=15):
    """ECE over bins (lo, hi] of equal width, in percent."""
    bins = bins_of_equal_width(conf, correct, num_bins)
    return 100 * sum(share * abs(acc - mean) for share, acc, mean in bins)


def errors_of_bins(conf, correct, num_bins=15):
    """What the bins of equal width say, by the names of the metrics."""
    bins = bins_of_equal_width(conf, correct, num_bins)
    rate, squares, debiased = sum(map(bool, correct)) / len(correct), 0.0, 0.0
    for share, acc, mean in bins:
        squares += share * (acc - mean) ** 2
        count = round(share * len(conf))
        if count > 1:
            debiased += share * ((acc - mean) ** 2 - acc * (1 - acc) / (count - 1))
    gaps = [abs(acc - mean) for _, acc, mean in bins]
    return {
        'ECE': expected_calibration_error(conf, correct, num_bins),
        'MCE': 100 * max(gaps),
        'ACE': 100 * sum(gaps) / len(bins),
        'RMSCE': 100 * math.sqrt(squares),
        'debiasedECE': 100 * math.sqrt(max(debiased, 0)),
        'OE': 100 * sum(share * mean * max(mean - acc, 0) for share, acc, mean in bins),
        'reliability': squares,
        'resolution': sum(share * (acc - rate) ** 2 for share, acc, _ in bins),
        'uncertainty': rate * (1 - rate),
    }


def nll_at(rows, labels, weights, beta):
    """Weighted sum of the NLL of rows of logits that are multiplied by beta."""
    scaled = beta * np.asarray(rows)
    own = scaled[np.arange(len(labels)), labels]
    return float(np.dot(weights, np.logaddexp.reduce(scaled, axis=1) - own))


def best_beta(rows, labels, weights, lowest=1 / 16, highest=16.0):
    """The multiple of logits with the least NLL, by ternary search over its logarithm."""
    low, high, data = math.log(lowest), math.log(highest), (np.asarray(rows), labels, weights)
    for _ in range(50):
        left, right = (2 * low + high) / 3, (low + 2 * high) / 3
        if nll_at(*data, math.exp(left)) < nll_at(*data, math.exp(right)):
            high = right
        else:
            low = left
    return math.exp((low + high) / 2)


def classwise(error, probs, labels, num_bins=15, threshold=-1):
    """Mean over classes of an error of their probability, where it is above a threshold (TACE)."""
    errors = []
    for k in range(len(probs[0])):
        pairs = [(p[k], y == k) for p, y in zip(probs, labels, strict=True) if p[k] > threshold]
        if pairs:
            errors.append(error(*zip(*pairs, strict=True), num_bins))
    return sum(errors) / len(errors)


def adaptive_calibration_error(conf, correct, num_bins=15):
    """AECE over bins of equal mass; what is tied is averaged, so that its order cannot matter."""
    conf, correct = np.asarray(conf, float), np.asarray(correct, float)
    order = np.argsort(conf)
    conf, correct = conf[order], correct[order]
    for value in np.unique(conf):
        correct[conf == value] = correct[conf == value].mean()
    n, total = len(conf), 0.0
    for b in range(num_bins):
        lo, hi = b * n / num_bins, (b + 1) * n / num_bins
        gap = 0.0
        for i in range(n):
            share = max(0.0, min(hi, i + 1) - max(lo, i))  # sample i fills the mass (i, i + 1]
            gap += share * (correct[i] - conf[i])
        total += abs(gap) / n
    return 100 * total


def orders_of(conf, correct):
    """Correctness from the most confident on, once for each order of predictions that are tied."""
    groups = [
        [c for p, c in zip(conf, correct, strict=True) if p == value]
        for value in sorted(set(conf), reverse=True)
    ]
    for orders in itertools.product(*(list(itertools.permutations(group)) for group in groups)):
        yield [c for group in orders for c in group]


def average_precision(ordered):
    """Mean over the right ones of the share of right ones among those up to each, in percent."""
    shares = [sum(ordered[: i + 1]) / (i + 1) for i, right in enumerate(ordered) if right]
    return 100 * sum(shares) / len(shares)


def coverage_at_risk(curve, risk):
    """Largest share of the first ones whose risk, by a curve of N shares, is low, in percent."""
    fitting = [i for i, value in enumerate(curve, 1) if value <= risk + 1e-12]
    return 100 * max(fitting, default=0) / len(curve)


def smooth_calibration_error(conf, correct, steps=2000):
    """Smooth ECE by its definition: an integral over t, and a search for its own width; percent."""
    ts = (np.arange(steps) + 0.5) / steps

    def error(sigma):
        total = np.zeros(steps)
        for p, c in zip(conf, correct, strict=True):
            for mirrored in (p, -p, 2 - p, 2 + p, -2 + p, 4 - p, -2 - p):
                total += (float(c) - p) * np.exp(-(((ts - mirrored) / sigma) ** 2) / 2)
        return abs(total).mean() / (sigma * math.sqrt(2 * math.pi) * len(conf))

    low, high = 0.0, 1.0
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return 100 * (low + high) / 2


def errors_among_the_first(conf, correct):
    """Errors, or risks, expected among the i most confident, over the orders of those tied."""
    errors, before = [], 0.0
    for value in sorted(set(conf), reverse=True):
        group = [c for p, c in zip(conf, correct, strict=True) if p == value]
        wrong = sum(1 - c for c in group)
        errors += [before + j * wrong / len(group) for j in range(1, len(group) + 1)]
        before += wrong
    return errors


def failure_auroc(conf, correct):
    """Share of the pairs of a right and a wrong prediction that confidence tells apart; percent."""
    conf, correct = np.asarray(conf), np.asarray(correct, bool)
    right, wrong = conf[correct], conf[~correct]
    if not len(right) or not len(wrong):
        return math.nan
    pairs = sum((right > p).sum() + (right == p).sum() / 2 for p in wrong)
    return 100 * pairs / (len(right) * len(wrong))


def failure_fpr(conf, correct, recall=0.95):
    """Share of the wrong predictions expected before the right one that completes the recall."""
    num_right = sum(map(bool, correct))
    num_wrong, passed, found = len(correct) - num_right, 0.0, 0
    if not num_right or not num_wrong:
        return math.nan
    for value in sorted(set(conf), reverse=True):
        group = [bool(c) for p, c in zip(conf, correct, strict=True) if p == value]
        right, wrong = sum(group), len(group) - sum(group)
        for j in range(1, right + 1):
            if found + j >= recall * num_right - 1e-9:
                return 100 * (passed + j * wrong / (right + 1)) / num_wrong
        found, passed = found + right, passed + wrong
    raise AssertionError('unreachable')


def risk_p_value(kept, wrong, risk):
    """Of one threshold: by the binomial distribution of single predictions, else by betting."""
    if all(share in (0, 1) for share in [*kept, *wrong]):
        size, errors = int(sum(kept)), int(sum(wrong))
        return sum(
            math.comb(size, k) * risk**k * (1 - risk) ** (size - k) for k in range(errors + 1)
        )
    owned = 0.0
    for k in range(5):
        bet, stake = 2.0**-k, 2.0 ** -min(k + 1, 4)
        wealth = stake
        for a, e in zip(kept, wrong, strict=True):
            wealth *= 1 + bet / (1 - risk) * (risk * a - e)
        owned += wealth
    return min(1.0, 1 / owned) if owned else 1.0


def threshold_at_risk(images, thresholds, risk, probability=0.95):
    """The loosest threshold of those that are proven from the strictest on, None without any.

    `images` are lists of confidences and of whether they are correct.
    """
    starts = [1 - 2.0**-k for k in (1, 3, 5, 7, 9)]
    budget, found = 0.0, None
    for threshold in sorted(thresholds, reverse=True):
        if threshold in starts:
            budget += (1 - probability) / 5
        kept, wrong = [], []
        for conf, correct in images:
            above = [right for c, right in zip(conf, correct, strict=True) if c > threshold]
            kept.append(len(above) / len(conf))
            wrong.append(above.count(False) / len(conf))
        if budget and risk_p_value(kept, wrong, risk) <= budget:
            found = threshold
        else:
            budget = 0.0
    return found


def mean_prediction(members):
    """The mean of the softmax of several rows of logits, and their mutual information."""
    rows = softmax(members, axis=1)
    mean = rows.mean(axis=0)
    return mean.tolist(), entr(mean).sum() - entr(rows).sum(axis=1).mean()


def distance(label, i, j):
    """Steps of a king from a pixel to the nearest one of another label; infinite if none."""
    others = np.argwhere(label.numpy() != label[i, j].item())
    return min(np.abs(others - (i, j)).max(axis=1), default=float('inf'))


def image_scores(rows, background):
    """The scores of an image's pixels, each a list of K probabilities, from their formulas."""
    classes = range(len(rows[0]))
    predicted = [row.index(max(row)) for row in rows]
    conf = [max(row) for row in rows]
    entropy = sum(p * math.log(p) for row in rows for p in row if p > 0)
    found = {'confidence': sum(conf) / len(rows), 'entropy': entropy / len(rows)}
    own = [c for c, k in zip(conf, predicted, strict=True) if k != background]
    names = ('soft_dice', 'expected_iou')
    if not own:
        least = min(row[background] for row in rows)
        return found | dict.fromkeys(('foreground_confidence', *names), least)
    found['foreground_confidence'] = sum(own) / len(own)
    values = {name: [] for name in names}
    for k in classes:
        inside = [row[k] for row, y in zip(rows, predicted, strict=True) if y == k]
        outside = [row[k] for row, y in zip(rows, predicted, strict=True) if y != k]
        if k == background or not inside:
            continue
        n, a, b = len(inside), sum(inside), sum(outside)
        # Half of the second derivative of A / (n + B), at the means.
        iou = a / (n + b) + a / (n + b) ** 3 * sum(p * (1 - p) for p in outside)
        for name, value in zip(names, (2 * a / (n + a + b), iou), strict=True):
            values[name].append(min(max(value, 0), 1))
    return found | {name: sum(v) / len(v) for name, v in values.items()}


def image_risks(predicted, labels, background, ignored=255):
    """1 - mean IoU, 1 - mean Dice and the share of errors of an image's labelled pixels."""
    pairs = [(p, y) for p, y in zip(predicted, labels, strict=True) if y != ignored]
    iou, dice = [], []
    for k in sorted({k for pair in pairs for k in pair} - {background}):
        both = sum(p == k and y == k for p, y in pairs)
        either = sum(p == k or y == k for p, y in pairs)
        iou.append(both / either)
        dice.append(2 * both / (both + either))
    return {
        'IoU': 1 - sum(iou) / len(iou) if iou else 0,
        'Dice': 1 - sum(dice) / len(dice) if dice else 0,
        'error': sum(p != y for p, y in pairs) / len(pairs),
    }


def _ranks(values):
    return [sum(v < x for v in values) + (values.count(x) + 1) / 2 for x in values]


def image_failure_figures(scores, risks, failure):
    """AURC, AUGRC and AUROC in percent, and Spearman's correlation, of images' scores and risks."""
    n = len(scores)
    sums = errors_among_the_first(scores, [1 - risk for risk in risks])
    x, y = _ranks(scores), _ranks([-r for r in risks])
    x, y = ([v - sum(own) / n for v in own] for own in (x, y))
    spread = math.sqrt(sum(v * v for v in x) * sum(v * v for v in y))
    covariance = sum(v * w for v, w in zip(x, y, strict=True))
    return {
        'AURC': 100 * sum(s / i for i, s in enumerate(sums, 1)) / n,
        'AUGRC': 100 * sum(s / n for s in sums) / n,
        'AUROC': failure_auroc(scores, [risk <= failure for risk in risks]),
        'Spearman': covariance / spread if spread else math.nan,
    }
