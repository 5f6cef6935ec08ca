# Margin-based label smoothing on your own folders of images with EfficientNet-Lite0, fine-tuned.
# Choose the margin on your validation images: tools/sweep.py.
_base_ = '../ce/efflite0_image_folder.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=6.0, alpha=0.1)))
