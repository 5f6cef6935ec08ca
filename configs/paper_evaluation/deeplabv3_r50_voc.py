# What `tools/test.py --evaluation paper` measures, as a config that any tool can run, mmseg's own
# among them: checkpoints of all losses, in batches of 8 images on any number of GPUs.
_base_ = '../ce/deeplabv3_r50_voc.py'

model = _base_.evaluations.paper.model
test_dataloader = _base_.evaluations.paper.test_dataloader
test_evaluator = _base_.evaluations.paper.test_evaluator
