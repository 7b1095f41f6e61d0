"""The packed encoder: config, presets, packing, blocks and stock heads."""
