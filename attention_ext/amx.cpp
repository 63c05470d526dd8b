// The CPU kernels that AMX has of its own; setup.py compiles this file for AVX-512 with AMX.
#define VECTOR_BYTES 64
#include "local_attention/tile_bands.h"

namespace attention_ext {

extern const TileKernels tile_kernels;

const TileKernels tile_kernels = {
    .packed_bytes = tile_packed_bytes,
    .pack = tile_pack,
    .scratch = tile_scratch,
    .attend = tile_attend,
    .backward_scratch = tile_backward_scratch,
    .backward = tile_backward,
};

}  // namespace attention_ext
