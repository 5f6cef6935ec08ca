"""Slow, obvious implementations, and other libraries, that the tests hold the package against."""

import itertools
import math

import numpy as np
from scipy import optimize, stats
from scipy.special import entr, softmax
from sklearn import metrics


def cals_penalty(z, multipliers, rho, margin):
    """Return the penalty of each class in a row of logits."""
    is_finite = z > -math.inf
    excess = (z.max() - z[is_finite]) / margin - 1
    multipliers = np.asarray(multipliers)[is_finite]
    active = multipliers * excess + rho * excess**2 / 2
    inactive = -(multipliers**2) / (2 * rho)
    return np.where(multipliers + rho * excess >= 0, active, inactive)


def cals_update(rows, multipliers, rho, margin):
    """Return the next multipliers of rows of logits, and the mean penalty of the present ones."""
    slopes = []
    penalties = []
    for z in map(np.array, rows):
        slope = np.maximum(0, multipliers + rho * ((z.max() - z) / margin - 1))
        slopes.append(np.clip(slope, 1e-6, 1e6))
        penalties.append(cals_penalty(z, multipliers, rho, margin).sum())
    return np.mean(slopes, axis=0).tolist(), np.mean(penalties)


def ada_focal_update(conf, correct, gammas, rate, lowest, highest, switch):
    """Return edges and gammas after a validation.

    Confidences are distinct, and their number is a multiple of the number of bins.
    """
    lower_edges = []
    new_gammas = []
    bins = np.argsort(conf).reshape(len(gammas), -1)
    for gamma, indices in zip(gammas, bins, strict=True):
        gap = np.mean([conf[i] - bool(correct[i]) for i in indices])
        gamma *= math.exp(rate * gap if gamma > 0 else -rate * gap)
        if abs(gamma) < switch:
            gamma = -switch if gamma > 0 else switch
        new_gammas.append(min(max(gamma, lowest), highest))
        lower_edges.append(conf[indices[0]])
    return lower_edges[1:], new_gammas


def equal_width_bins(conf, correct, num_bins=15):
    """Return share of samples, accuracy and mean confidence of each non-empty bin (lo, hi]."""
    conf = np.asarray(conf, float)
    correct = np.asarray(correct, float)
    bin_index = np.digitize(conf, np.arange(1, num_bins) / num_bins, right=True)
    bins = []
    for index in np.unique(bin_index):
        in_bin = bin_index == index
        bins.append((in_bin.mean(), correct[in_bin].mean(), conf[in_bin].mean()))
    return np.array(bins).T


def expected_calibration_error(conf, correct, num_bins=15):
    """Return the ECE over bins (lo, hi] of equal width, in percent."""
    share, accuracy, mean_conf = equal_width_bins(conf, correct, num_bins)
    return 100 * share @ abs(accuracy - mean_conf)


def equal_width_metrics(conf, correct, num_bins=15):
    """Return the metrics over bins of equal width, by name."""
    share, accuracy, mean_conf = equal_width_bins(conf, correct, num_bins)
    gaps = abs(accuracy - mean_conf)
    count = share * len(conf)
    base_rate = np.mean(correct)
    sampling_variance = accuracy * (1 - accuracy) / np.maximum(count - 1, 1)
    debiased = (share * (gaps**2 - sampling_variance))[count > 1.5].sum()
    return {
        'ECE': 100 * share @ gaps,
        'MCE': 100 * max(gaps),
        'ACE': 100 * np.mean(gaps),
        'RMSCE': 100 * math.sqrt(share @ gaps**2),
        'debiasedECE': 100 * math.sqrt(max(debiased, 0)),
        'OE': 100 * share @ (mean_conf * np.maximum(mean_conf - accuracy, 0)),
        'reliability': share @ gaps**2,
        'resolution': share @ (accuracy - base_rate) ** 2,
        'uncertainty': base_rate * (1 - base_rate),
    }


def best_temperature(logits, labels, weights):
    """Return the mean NLL at the best temperature and at 1, and that temperature."""
    logits = np.asarray(logits)
    indices = np.arange(len(labels))

    def nll(log_inverse_temperature):
        scaled = math.exp(log_inverse_temperature) * logits
        nll_by_row = np.logaddexp.reduce(scaled, axis=1) - scaled[indices, labels]
        return np.average(nll_by_row, weights=weights)

    best = optimize.minimize_scalar(
        nll,
        bounds=(-math.log(16), math.log(16)),
        method='bounded',
        options={'xatol': 1e-9},
    )
    return best.fun, nll(0), math.exp(-best.x)


def classwise(error, probs, labels, num_bins=15, threshold=-1):
    """Return the mean of an error over classes, of probabilities above a threshold (TACE)."""
    labels = np.asarray(labels)
    errors = []
    for k, class_probs in enumerate(np.asarray(probs).T):
        is_above = class_probs > threshold
        if is_above.any():
            errors.append(error(class_probs[is_above], labels[is_above] == k, num_bins))
    return np.mean(errors)


def largest_rate_gap(probs, labels):
    """Return the largest gap of a class's mean probability from its frequency, in percent."""
    gaps = []
    for k in range(len(probs[0])):
        mean_prob = sum(row[k] for row in probs) / len(labels)
        frequency = sum(label == k for label in labels) / len(labels)
        gaps.append(abs(mean_prob - frequency))
    return 100 * max(gaps)


def adaptive_calibration_error(conf, correct, num_bins=15):
    """Return the AECE over bins of equal mass, in percent.

    Tied predictions get their mean correctness, so that their order cannot matter.
    """
    order = np.argsort(conf)
    n = len(conf)
    conf = np.asarray(conf, float)[order]
    correct = np.asarray(correct, float)[order]
    for value in np.unique(conf):
        correct[conf == value] = correct[conf == value].mean()
    edges = np.arange(num_bins + 1)[:, None] * n / num_bins
    indices = np.arange(n)
    # Sample i fills the mass (i, i + 1].
    share = np.minimum(edges[1:], indices + 1) - np.maximum(edges[:-1], indices)
    return 100 * abs(share.clip(0) @ (correct - conf)).sum() / n


def mean_over_tie_orders(statistic, conf, correct):
    """Return the mean of a statistic over all orders of tied predictions.

    The statistic takes the correctness of predictions from the most confident on.
    """
    orders_by_tie = []
    for value in sorted(set(conf), reverse=True):
        tied = [c for p, c in zip(conf, correct, strict=True) if p == value]
        orders_by_tie.append(itertools.permutations(tied))
    values = []
    for order in itertools.product(*orders_by_tie):
        values.append(statistic(np.array([*itertools.chain(*order)], float)))
    return np.mean(values, axis=0)


def expected_errors(conf, correct):
    """Return the errors, or risks, to expect among the i most confident, for each i from 1."""
    return mean_over_tie_orders(lambda ordered: np.cumsum(1 - ordered), conf, correct)


def risk_curve(conf, correct):
    return expected_errors(conf, correct) / np.arange(1, len(conf) + 1)


def coverage_at_risk(curve, risk):
    """Return the largest coverage whose risk is low enough, by a curve of N coverages; percent."""
    low_enough = np.flatnonzero(curve <= risk + 1e-12)
    return 100 * (low_enough.max(initial=-1) + 1) / len(curve)


def failure_auroc(conf, correct):
    if len(set(correct)) < 2:
        return math.nan
    return 100 * metrics.roc_auc_score(correct, conf)


def average_precision(conf, correct):
    def precision_of_order(ordered):
        return 100 * metrics.average_precision_score(ordered, -np.arange(len(ordered)))

    return mean_over_tie_orders(precision_of_order, conf, correct)


def failure_fpr(conf, correct):
    """Return the share of errors ranked before the recall is complete, in percent."""
    num_correct = sum(map(bool, correct))
    num_wrong = len(correct) - num_correct
    if num_correct == 0 or num_wrong == 0:
        return math.nan
    num_required = math.ceil(0.95 * num_correct - 1e-9)

    def errors_before(ordered):
        return np.cumsum(ordered).searchsorted(num_required) + 1 - num_required

    return 100 * mean_over_tie_orders(errors_before, conf, correct) / num_wrong


def smooth_calibration_error(conf, correct):
    """Return the smooth ECE by its definition, in percent.

    The error is an integral over t, and its bandwidth is the one that equals the error.
    """
    ts = (np.arange(500) + 0.5) / 500

    def error(sigma):
        total = np.zeros(500)
        for p, c in zip(conf, correct, strict=True):
            for mirrored in (p, -p, 2 - p, 2 + p, -2 + p, 4 - p, -2 - p):
                total += (float(c) - p) * np.exp(-(((ts - mirrored) / sigma) ** 2) / 2)
        return abs(total).mean() / (sigma * math.sqrt(2 * math.pi) * len(conf))

    return 100 * optimize.bisect(lambda sigma: error(sigma) - sigma, 1e-3, 1, xtol=1e-4)


def risk_p_value(kept, wrong, risk):
    """Return the p-value of one threshold.

    Single predictions have a binomial distribution; for images it is a bet on each.
    """
    if {*kept, *wrong} <= {0, 1}:
        return stats.binom.cdf(sum(wrong), sum(kept), risk)
    gains = risk * np.array(kept) - wrong
    capital = 0.0
    for k in range(5):
        capital += 2.0 ** -min(k + 1, 4) * np.prod(1 + 2.0**-k / (1 - risk) * gains)
    if capital == 0:
        return 1.0
    return min(1.0, 1 / capital)


def threshold_at_risk(images, thresholds, risk, probability=0.95):
    """Return the loosest threshold of those proven from the strictest on, None without any.

    `images` are lists of confidences and of whether they are correct.
    """
    starts = [1 - 2.0**-k for k in (1, 3, 5, 7, 9)]
    images = [(np.array(conf), np.array(correct)) for conf, correct in images]
    budget = 0.0
    proven_threshold = None
    for threshold in sorted(thresholds, reverse=True):
        if threshold in starts:
            budget += (1 - probability) / 5
        kept = []
        wrong = []
        for conf, correct in images:
            is_kept = conf > threshold
            kept.append(is_kept.mean())
            wrong.append((is_kept & ~correct).mean())
        if budget > 0 and risk_p_value(kept, wrong, risk) <= budget:
            proven_threshold = threshold
        else:
            budget = 0.0
    return proven_threshold


def mean_prediction(members):
    """Return the mean of the softmax of several rows of logits, and their mutual information."""
    probs = softmax(members, axis=1)
    mean = probs.mean(axis=0)
    return mean.tolist(), entr(mean).sum() - entr(probs).sum(axis=1).mean()


def distance(label, i, j):
    """Return a king's steps from a pixel to the nearest of another label; infinity if none."""
    others = np.argwhere(label.numpy() != label[i, j].item())
    return min(np.abs(others - (i, j)).max(axis=1), default=float('inf'))


def image_scores(probs, background):
    """Return the scores of an image of ``(K, M)`` probabilities, from their formulas."""
    predicted = probs.argmax(axis=0)
    conf = probs.max(axis=0)
    scores = {'confidence': conf.mean(), 'entropy': -entr(probs).sum(axis=0).mean()}
    objects = [k for k in np.unique(predicted) if k != background]
    if not objects:
        names = ('foreground_confidence', 'soft_dice', 'expected_iou')
        return scores | dict.fromkeys(names, probs[background].min())
    dice = []
    iou = []
    for k in objects:
        inside = probs[k][predicted == k]
        outside = probs[k][predicted != k]
        n = len(inside)
        a = inside.sum()
        b = outside.sum()
        dice.append(2 * a / (n + a + b))
        # Half of the second derivative of A / (n + B), at the means.
        variance = (outside * (1 - outside)).sum()
        iou.append(np.clip(a / (n + b) + a / (n + b) ** 3 * variance, 0, 1))
    scores['foreground_confidence'] = conf[np.isin(predicted, objects)].mean()
    return scores | {'soft_dice': np.mean(dice), 'expected_iou': np.mean(iou)}


def image_risks(predicted, labels, background, ignored=255):
    """Return 1 - mean IoU, 1 - mean Dice and the error rate of an image's valid pixels."""
    valid = labels != ignored
    predicted = predicted[valid]
    labels = labels[valid]
    risks = {'IoU': 0, 'Dice': 0, 'error': np.mean(predicted != labels)}
    classes = sorted({*predicted, *labels} - {background})
    if classes:
        for name, score in (('IoU', metrics.jaccard_score), ('Dice', metrics.f1_score)):
            risks[name] = 1 - score(labels, predicted, labels=classes, average='macro')
    return risks


def image_failure_figures(scores, risks, failure):
    """Return AURC, AUGRC and AUROC in percent, and Spearman's correlation, of scores and risks."""
    spearman = math.nan
    if len(set(scores)) > 1 and len(set(risks)) > 1:
        spearman = -stats.spearmanr(scores, risks).statistic
    return {
        'AURC': 100 * np.mean(risk_curve(scores, 1 - risks)),
        'AUGRC': 100 * np.mean(expected_errors(scores, 1 - risks)) / len(scores),
        'AUROC': failure_auroc(scores, risks <= failure),
        'Spearman': spearman,
    }
