# SPDX-License-Identifier: Apache-2.0
# The directory for PYTHONPATH: monarch_io, and what hooks torch by itself (--monarch-hints=torch).

nobase_dist_pkgdata_DATA = \
	%D%/monarch_io.dist-info/METADATA \
	%D%/monarch_io.dist-info/entry_points.txt \
	%D%/monarch_io/__init__.py \
	%D%/monarch_io/torch_hints.py \
	%D%/monarch_io/torch_learned.py \
	%D%/sitecustomize.py
