"""Slow, obvious implementations, and other libraries, that the tests hold the package against."""

import itertools
import math

import numpy as np
from scipy import optimize, stats
from scipy.special import entr, softmax
from sklearn import metrics


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
    conf, correct = np.asarray(conf, float), np.asarray(correct, float)
    place = np.digitize(conf, np.arange(1, num_bins) / num_bins, right=True)
    masks = [place == b for b in np.unique(place)]
    return np.array([(own.mean(), correct[own].mean(), conf[own].mean()) for own in masks]).T


def expected_calibration_error(conf, correct, num_bins=15):
    """ECE over bins (lo, hi] of equal width, in percent."""
    share, accuracy, mean = bins_of_equal_width(conf, correct, num_bins)
    return 100 * share @ abs(accuracy - mean)


def errors_of_bins(conf, correct, num_bins=15):
    """What the bins of equal width say, by the names of the metrics."""
    share, accuracy, mean = bins_of_equal_width(conf, correct, num_bins)
    gaps, count, rate = abs(accuracy - mean), share * len(conf), np.mean(correct)
    noise = accuracy * (1 - accuracy) / np.maximum(count - 1, 1)
    debiased = (share * (gaps**2 - noise))[count > 1.5].sum()
    return {
        'ECE': 100 * share @ gaps,
        'MCE': 100 * max(gaps),
        'ACE': 100 * np.mean(gaps),
        'RMSCE': 100 * math.sqrt(share @ gaps**2),
        'debiasedECE': 100 * math.sqrt(max(debiased, 0)),
        'OE': 100 * share @ (mean * np.maximum(mean - accuracy, 0)),
        'reliability': share @ gaps**2,
        'resolution': share @ (accuracy - rate) ** 2,
        'uncertainty': rate * (1 - rate),
    }


def best_temperature(logits, labels, weights):
    """The mean NLL at the best temperature and at 1, and that temperature."""
    logits, places = np.asarray(logits), np.arange(len(labels))

    def nll(log_beta):
        scaled = math.exp(log_beta) * logits
        rows = np.logaddexp.reduce(scaled, axis=1) - scaled[places, labels]
        return np.average(rows, weights=weights)

    ends = dict(bounds=(-math.log(16), math.log(16)), method='bounded')
    best = optimize.minimize_scalar(nll, **ends, options=dict(xatol=1e-9))
    return best.fun, nll(0), math.exp(-best.x)


def classwise(error, probs, labels, num_bins=15, threshold=-1):
    """Mean over classes of an error of their probability, where it is above a threshold (TACE)."""
    errors, labels = [], np.asarray(labels)
    for k, own in enumerate(np.asarray(probs).T):
        if (own > threshold).any():
            errors.append(error(own[own > threshold], labels[own > threshold] == k, num_bins))
    return np.mean(errors)


def adaptive_calibration_error(conf, correct, num_bins=15):
    """AECE over bins of equal mass; what is tied is averaged, so that its order cannot matter."""
    order, n = np.argsort(conf), len(conf)
    conf, correct = np.asarray(conf, float)[order], np.asarray(correct, float)[order]
    for value in np.unique(conf):
        correct[conf == value] = correct[conf == value].mean()
    edges, places = np.arange(num_bins + 1)[:, None] * n / num_bins, np.arange(n)
    # Sample i fills the mass (i, i + 1].
    share = np.minimum(edges[1:], places + 1) - np.maximum(edges[:-1], places)
    return 100 * abs(share.clip(0) @ (correct - conf)).sum() / n


def over_orders(figure, conf, correct):
    """The mean of a figure of the correctness from the most confident on, over orders of ties."""
    groups = [
        [c for p, c in zip(conf, correct, strict=True) if p == value]
        for value in sorted(set(conf), reverse=True)
    ]
    orders = itertools.product(*map(itertools.permutations, groups))
    return np.mean([figure(np.array(sum(order, ()), float)) for order in orders], axis=0)


def errors_among_the_first(conf, correct):
    """Errors, or risks, expected among the i most confident."""
    return over_orders(lambda ordered: np.cumsum(1 - ordered), conf, correct)


def risk_curve(conf, correct):
    return errors_among_the_first(conf, correct) / np.arange(1, len(conf) + 1)


def coverage_at_risk(curve, risk):
    """Largest share of the first ones whose risk, by a curve of N shares, is low, in percent."""
    fitting = np.flatnonzero(curve <= risk + 1e-12)
    return 100 * (fitting.max(initial=-1) + 1) / len(curve)


def failure_auroc(conf, correct):
    return 100 * metrics.roc_auc_score(correct, conf) if len(set(correct)) == 2 else math.nan


def average_precision(conf, correct):
    def of_one(ordered):
        return 100 * metrics.average_precision_score(ordered, -np.arange(len(ordered)))

    return over_orders(of_one, conf, correct)


def failure_fpr(conf, correct, recall=0.95):
    """Share of the wrong predictions before the right one that completes the recall; percent."""
    right = sum(map(bool, correct))
    needed = math.ceil(recall * right - 1e-9)
    if right in (0, len(correct)):
        return math.nan

    def of_one(ordered):
        return np.cumsum(ordered).searchsorted(needed) + 1 - needed

    return 100 * over_orders(of_one, conf, correct) / (len(correct) - right)


def smooth_calibration_error(conf, correct, steps=500):
    """Smooth ECE by its definition: an integral over t, and a search for its own width; percent."""
    ts = (np.arange(steps) + 0.5) / steps

    def error(sigma):
        total = np.zeros(steps)
        for p, c in zip(conf, correct, strict=True):
            for mirrored in (p, -p, 2 - p, 2 + p, -2 + p, 4 - p, -2 - p):
                total += (float(c) - p) * np.exp(-(((ts - mirrored) / sigma) ** 2) / 2)
        return abs(total).mean() / (sigma * math.sqrt(2 * math.pi) * len(conf))

    return 100 * optimize.bisect(lambda sigma: error(sigma) - sigma, 1e-3, 1, xtol=1e-4)


def risk_p_value(kept, wrong, risk):
    """Of one threshold: by the binomial distribution of single predictions, else by betting."""
    if {*kept, *wrong} <= {0, 1}:
        return stats.binom.cdf(sum(wrong), sum(kept), risk)
    wins, owned = risk * np.array(kept) - wrong, 0.0
    for k in range(5):
        owned += 2.0 ** -min(k + 1, 4) * np.prod(1 + 2.0**-k / (1 - risk) * wins)
    return min(1.0, 1 / owned) if owned else 1.0


def threshold_at_risk(images, thresholds, risk, probability=0.95):
    """The loosest threshold of those that are proven from the strictest on, None without any.

    `images` are lists of confidences and of whether they are correct.
    """
    starts = [1 - 2.0**-k for k in (1, 3, 5, 7, 9)]
    budget, found = 0.0, None
    images = [(np.array(conf), np.array(correct)) for conf, correct in images]
    for threshold in sorted(thresholds, reverse=True):
        if threshold in starts:
            budget += (1 - probability) / 5
        above = [(conf > threshold, correct) for conf, correct in images]
        kept, wrong = zip(*[(k.mean(), (k & ~correct).mean()) for k, correct in above], strict=True)
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


def image_scores(probs, background):
    """The scores of an image of ``(K, M)`` probabilities, from their formulas."""
    predicted, conf = probs.argmax(axis=0), probs.max(axis=0)
    found = {'confidence': conf.mean(), 'entropy': -entr(probs).sum(axis=0).mean()}
    objects = [k for k in np.unique(predicted) if k != background]
    if not objects:
        names = ('foreground_confidence', 'soft_dice', 'expected_iou')
        return found | dict.fromkeys(names, probs[background].min())
    dice, iou = [], []
    for k in objects:
        inside, outside = probs[k][predicted == k], probs[k][predicted != k]
        n, a, b = len(inside), inside.sum(), outside.sum()
        dice.append(2 * a / (n + a + b))
        # Half of the second derivative of A / (n + B), at the means.
        variance = (outside * (1 - outside)).sum()
        iou.append(np.clip(a / (n + b) + a / (n + b) ** 3 * variance, 0, 1))
    found['foreground_confidence'] = conf[np.isin(predicted, objects)].mean()
    return found | {'soft_dice': np.mean(dice), 'expected_iou': np.mean(iou)}


def image_risks(predicted, labels, background, ignored=255):
    """1 - mean IoU, 1 - mean Dice and the share of errors of an image's labelled pixels."""
    predicted, labels = (x[labels != ignored] for x in (predicted, labels))
    classes = sorted({*predicted, *labels} - {background})
    options = dict(labels=classes, average='macro')
    scores = metrics.jaccard_score, metrics.f1_score
    iou, dice = (1 - s(labels, predicted, **options) if classes else 0 for s in scores)
    return {'IoU': iou, 'Dice': dice, 'error': np.mean(predicted != labels)}


def image_failure_figures(scores, risks, failure):
    """AURC, AUGRC and AUROC in percent, and Spearman's correlation, of images' scores and risks."""
    constant = len(set(scores)) == 1 or len(set(risks)) == 1
    return {
        'AURC': 100 * np.mean(risk_curve(scores, 1 - risks)),
        'AUGRC': 100 * np.mean(errors_among_the_first(scores, 1 - risks)) / len(scores),
        'AUROC': failure_auroc(scores, risks <= failure),
        'Spearman': math.nan if constant else -stats.spearmanr(scores, risks).statistic,
    }
