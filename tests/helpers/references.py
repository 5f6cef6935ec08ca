"""Slow, obvious implementations, in plain loops, that the tests hold the package against."""

import itertools
import math

import numpy as np


def _log_softmax(logits):
    highest = max(logits)
    normaliser = math.log(sum(math.exp(logit - highest) for logit in logits)) + highest
    return [logit - normaliser for logit in logits]


def _shares(target, num_classes):
    return target if isinstance(target, list) else [float(k == target) for k in range(num_classes)]


def _weighted_nll(log_probs, target, weights):
    """Cross-entropy of one row, in which a share of 0 counts for nothing."""
    shares = _shares(target, len(log_probs))
    weights = weights or [1.0] * len(log_probs)
    return -sum(
        weight * share * log_prob
        for share, weight, log_prob in zip(shares, weights, log_probs, strict=True)
        if share
    )


def margin_label_smoothing_row(logits, target, margin, alpha, class_reduction='mean', weights=None):
    """Eq. 7 of the paper for one row; `target` is a label or a list of K probabilities."""
    highest = max(logits)
    penalty = sum(max(0.0, highest - logit - margin) for logit in logits if logit > -math.inf)
    penalty /= len(logits) if class_reduction == 'mean' else 1
    return _weighted_nll(_log_softmax(logits), target, weights) + alpha * penalty


def label_smoothing_row(logits, target, alpha, weights=None):
    """Eq. 3 of the paper for one row."""
    log_probs = _log_softmax(logits)
    uniform = -sum(log_prob for log_prob in log_probs if log_prob > -math.inf) / len(logits)
    return (1 - alpha) * _weighted_nll(log_probs, target, weights) + alpha * uniform


def confidence_penalty_row(logits, target, alpha, class_reduction='mean', weights=None):
    """Cross-entropy less alpha times the entropy, for one row."""
    log_probs = _log_softmax(logits)
    entropy = -sum(math.exp(log_prob) * log_prob for log_prob in log_probs if log_prob > -math.inf)
    entropy /= len(logits) if class_reduction == 'mean' else 1
    return _weighted_nll(log_probs, target, weights) - alpha * entropy


def _factored(logits, target, factor, weights):
    """Cross-entropy of one row, each share of which has a factor of its probability."""
    shares, log_probs = _shares(target, len(logits)), _log_softmax(logits)
    factors = [factor(math.exp(log_prob)) for log_prob in log_probs]
    weights = weights or [1.0] * len(logits)
    weights = [weight * factor for weight, factor in zip(weights, factors, strict=True)]
    return _weighted_nll(log_probs, shares, weights)


def softmax_focal_row(logits, target, gamma, weights=None):
    """Focal loss for one row; `gamma` is a number, or a function of the probability."""
    power = gamma if callable(gamma) else lambda _: gamma
    return _factored(logits, target, lambda p: (1 - p) ** power(p), weights)


def inverse_focal_row(logits, target, gamma, weights=None):
    """Inverse focal loss of one row."""
    return _factored(logits, target, lambda p: (1 + p) ** gamma, weights)


def brier_row(logits, target, weights=None):
    """Squared distance of the probabilities from the target, for one row."""
    shares = _shares(target, len(logits))
    weights = weights or [1.0] * len(logits)
    error = sum(
        (math.exp(log_prob) - share) ** 2
        for share, log_prob in zip(shares, _log_softmax(logits), strict=True)
    )
    return error * sum(w * share for w, share in zip(weights, shares, strict=True))


def dual_focal_row(logits, target, gamma, weights=None):
    """Dual focal loss of one row with a label."""
    probs = [math.exp(log_prob) for log_prob in _log_softmax(logits)]
    below = [prob for prob in probs if prob < probs[target]]
    factor = 1 - probs[target] + (max(below) if below else 0.0)
    return factor**gamma * _weighted_nll(_log_softmax(logits), target, weights)


def bsce_row(logits, target, gamma, norm, weights=None):
    """Cross-entropy of one row, weighted by its distance from the target."""
    log_probs = _log_softmax(logits)
    distance = sum(
        abs(math.exp(log_prob) - share) ** norm
        for share, log_prob in zip(_shares(target, len(logits)), log_probs, strict=True)
    )
    return distance**gamma * _weighted_nll(log_probs, target, weights)


def acls_row(logits, target, margin, alpha, alpha_others, weights=None):
    """Cross-entropy of one row plus the squares of ACLS."""
    highest = max(logits)
    loss = _weighted_nll(_log_softmax(logits), target, weights)
    loss += alpha * max(0.0, highest - margin) ** 2
    for k, logit in enumerate(logits):
        if k != logits.index(highest) and logit > -math.inf:
            excess = max(0.0, highest - logit - margin)
            loss += alpha_others * excess**2 / (len(logits) - 1)
    return loss


def ada_focal_row(logits, target, gammas, edges, weights=None):
    """Focal or inverse focal loss of one row with a label."""
    log_prob = _log_softmax(logits)[target]
    gamma = gammas[sum(math.exp(log_prob) >= edge for edge in edges)]
    base = 1 - math.exp(log_prob) if gamma > 0 else 1 + math.exp(log_prob)
    return -(base ** abs(gamma)) * log_prob * (weights[target] if weights else 1)


def ada_focal_update(conf, correct, gammas, rate, lowest, highest, switch):
    """Edges and gammas after a validation of distinct confidences, a multiple of the bins."""
    order = sorted(range(len(conf)), key=lambda i: conf[i])
    size = len(conf) // len(gammas)
    edges, result = [], []
    for b, gamma in enumerate(gammas):
        inside = order[b * size : (b + 1) * size]
        gap = sum(conf[i] - bool(correct[i]) for i in inside) / size
        if gamma > 0:
            gamma *= math.exp(rate * gap)
        else:
            gamma *= math.exp(-rate * gap)
        if abs(gamma) < switch:
            gamma = -switch if gamma > 0 else switch
        result.append(min(max(gamma, lowest), highest))
        edges.append(conf[inside[0]])
    return edges[1:], result


def cals_row(logits, target, multipliers, rho, margin, weights=None):
    """Cross-entropy of one row plus the penalty of its logit distances; one multiplier or K."""
    if isinstance(multipliers, float):
        multipliers = [multipliers] * len(logits)
    penalty = 0.0
    for multiplier, logit in zip(multipliers, logits, strict=True):
        excess = (max(logits) - logit) / margin - 1
        if logit == -math.inf:
            continue
        if multiplier + rho * excess >= 0:
            penalty += multiplier * excess + rho * excess**2 / 2
        else:
            penalty -= multiplier**2 / (2 * rho)
    return _weighted_nll(_log_softmax(logits), target, weights) + penalty


def cals_update(rows, multipliers, rho, margin):
    """The next multipliers of rows of logits, and the mean penalty of the present ones."""
    means, penalty = [0.0] * len(multipliers), 0.0
    for logits in rows:
        for k, logit in enumerate(logits):
            slope = max(0.0, multipliers[k] + rho * ((max(logits) - logit) / margin - 1))
            means[k] += min(max(slope, 1e-6), 1e6) / len(rows)
        of_none = cals_row(logits, [0.0] * len(logits), multipliers, rho, margin)
        penalty += of_none / len(rows)
    return means, penalty


def mdca(rows, targets, row_weights):
    """Multi-class difference in confidence and accuracy of rows of logits."""
    total, error = sum(row_weights), 0.0
    num_classes = len(rows[0])
    for k in range(num_classes):
        gap = 0.0
        for logits, target, weight in zip(rows, targets, row_weights, strict=True):
            prob = math.exp(_log_softmax(logits)[k])
            gap += weight * (prob - _shares(target, num_classes)[k])
        error += abs(gap / total)
    return error / num_classes


def l1_ace(rows, targets, num_bins, soft_bins=False):
    """Average calibration error of each class over its non-empty bins [lo, hi), then over K."""
    num_classes, errors = len(rows[0]), []
    for k in range(num_classes):
        count, gap = [0.0] * num_bins, [0.0] * num_bins
        for logits, target in zip(rows, targets, strict=True):
            prob = math.exp(_log_softmax(logits)[k])
            parts = {min(int(prob * num_bins), num_bins - 1): 1.0}
            if soft_bins:
                position = min(max(prob * num_bins - 0.5, 0.0), num_bins - 1.0)
                low = int(position)
                parts = {low: 1 - (position - low), low + 1: position - low}
            for b, part in parts.items():
                if part:
                    count[b] += part
                    gap[b] += part * (prob - _shares(target, num_classes)[k])
        parts = [min(1.0, c) if soft_bins else 1.0 for c in count if c > 0]
        gaps = [abs(g / c) for g, c in zip(gap, count, strict=True) if c > 0]
        errors.append(sum(p * g for p, g in zip(parts, gaps, strict=True)) / sum(parts))
    return sum(errors) / num_classes


def neighbourhood_shares(labels, num_classes, kernel, ignored):
    """Share of each class around the pixels of one map of labels, as nested lists (H, W, K)."""
    height, width, reach = len(labels), len(labels[0]), len(kernel) // 2
    shares = [[[0.0] * num_classes for _ in range(width)] for _ in range(height)]
    for row, column in itertools.product(range(height), range(width)):
        total = 0.0
        for dy, dx in itertools.product(range(-reach, reach + 1), repeat=2):
            y, x = row + dy, column + dx
            if 0 <= y < height and 0 <= x < width and labels[y][x] != ignored:
                weight = kernel[dy + reach][dx + reach]
                total += weight
                shares[row][column][labels[y][x]] += weight
        if total:
            shares[row][column] = [share / total for share in shares[row][column]]
    return shares


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
    rows = [[math.exp(value) for value in _log_softmax(row)] for row in members]
    mean = [sum(probs) / len(rows) for probs in zip(*rows, strict=True)]
    entropies = [-sum(p * math.log(p) for p in row if p > 0) for row in [mean, *rows]]
    information = entropies[0] - sum(entropies[1:]) / len(rows)
    return mean, information


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
