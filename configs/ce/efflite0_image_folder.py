# Cross-entropy on your own folders of images with EfficientNet-Lite0, fine-tuned. For another loss,
# inherit from this as mbls/ does.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/image_folder.py',
    '../_base_/models/efflite0.py',
    '../_base_/schedules/finetune.py',
]

# The ImageNet weights of EfficientNet-Lite.
custom_imports = dict(imports=['mmcalib', 'mmcalib.paper.efficientnet_lite'])
