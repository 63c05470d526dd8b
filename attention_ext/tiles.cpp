// The CPU kernels on tiles of bfloat16; setup.py compiles this file for AMX, and for AVX-512 with its dot products.
#define VECTOR_BYTES 64
#if defined(__AMX_BF16__) || defined(ATTENTION_EXT_EMULATE_AMX)  // the latter is defined by a test
#define TILE_TABLE tile_kernels_amx
#else
#define TILE_TABLE tile_kernels_avx512_bf16
#endif
#include "local_attention/tile_bands.h"

namespace attention_ext {

extern const TileKernels TILE_TABLE;

const TileKernels TILE_TABLE = {
    .packed_bytes = tile_packed_bytes,
    .pack = tile_pack,
    .scratch = tile_scratch,
    .attend = tile_attend,
    .backward_scratch = tile_backward_scratch,
    .backward = tile_backward,
};

}  // namespace attention_ext
