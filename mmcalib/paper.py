"""The modules of ``configs/paper``, which configs import as ``mmcalib.paper.newsgroups``."""

from mmcalib.members import package_folder

__path__ = [str(package_folder('mmcalib', 'configs') / 'paper')]
