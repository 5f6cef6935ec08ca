"""
Risk and coverage: which predictions to accept
==============================================

If a person can look at the doubtful predictions, two questions matter. How many errors remain among
the accepted predictions (the risk), and what share is accepted (the coverage)?
"""

# %%
# A classifier that may abstain
# -----------------------------

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB

from mmcalib.metrics import measure

images, labels = load_digits(return_X_y=True)
images = images + np.random.default_rng(0).normal(0, 4, images.shape)
train_x, test_x, train_y, test_y = train_test_split(images, labels, train_size=600, random_state=0)
models = {
    'naive Bayes': GaussianNB().fit(train_x, train_y),
    'logistic regression': LogisticRegression(C=0.001, max_iter=500).fit(train_x, train_y),
}
probs = {name: model.predict_proba(test_x) for name, model in models.items()}

# %%
# Calibration and order are two things
# ------------------------------------
# ECE asks whether confidences are right as numbers. The area under the risk–coverage curve (AURC)
# asks whether errors come last when predictions are ordered by confidence; lower is better. A
# model may do well in one and badly in the other.

for name, p in probs.items():
    found = measure(p, test_y, ['accuracy', 'ECE', 'AURC'])
    print(f'{name}:', ', '.join(f'{key} {value:.2f} %' for key, value in found.items()))

# %%
# A budget of errors, or a budget of work
# ---------------------------------------
# ``coverage@risk`` starts from the share of errors that you allow, ``risk@coverage`` from the
# share of predictions that must be accepted without review.

for name, p in probs.items():
    coverage, risk = measure(p, test_y, ['coverage@risk_0.01', 'risk@coverage_0.8']).values()
    print(f'{name}: accepting {coverage:.0f} % keeps errors at 1 %, 80 % leaves {risk:.1f} %')

coverages = np.linspace(0.05, 0.99, 60)
figure, axes = plt.subplots(figsize=(6, 4), layout='constrained')
for name, p in probs.items():
    risks = [measure(p, test_y, f'risk@coverage_{coverage}') for coverage in coverages]
    axes.plot(100 * coverages, risks, label=name)
axes.axhline(1, color='black', linestyle=':', label='1 % of errors')
axes.set(
    xlabel='coverage (%)', ylabel='errors among the accepted (%)', xlim=(0, 100), ylim=(0, None)
)
axes.legend()
plt.show()
