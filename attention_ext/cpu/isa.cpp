// All CPU kernels for one instruction set; setup.py compiles this file once for each.
#if defined(__AVX512F__) || defined(ATTENTION_EXT_EMULATE_AVX512)  // the latter by a test
#define VECTOR_BYTES 64
#define ISA_TABLE instruction_set_avx512
#define ISA_NAME "avx512"
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#define ISA_TABLE instruction_set_avx2
#define ISA_NAME "avx2"
#else
#define VECTOR_BYTES 16
#define ISA_TABLE instruction_set_generic
#define ISA_NAME "generic"
#endif

#include "../clustered_attention/dense.h"
#include "../hashing/hash.h"
#include "../improved_clustered_attention/exact.h"
#include "../kmeans/assign.h"
#include "../lsh_attention/buckets.h"
#include "../lsh_attention/windows.h"
#include "kernels.h"

namespace attention_ext {

extern const InstructionSet ISA_TABLE;

#define KERNELS(T)                                                                                    \
  {Simd<T>::width,         hash_rows,          hash_integers<T>,          hash_block<T>,              \
   sum_rows<T>,            sum_groups<T>,      dot_rows<T>,              dense_scratch<T>,          \
   dense_block<T>,         select_top<T>,      weigh_top<T>,              dense_backward_scratch<T>,  \
   dense_backward_block<T>,                                                                           \
   exact_scratch<T>,       exact_cluster<T>,   exact_backward_scratch<T>, exact_backward_cluster<T>,   \
   bucket_rows,            bucket_block<T>,    window_scratch<T>,         window_block<T>,             \
   window_backward_block<T>}

const InstructionSet ISA_TABLE = {
    ISA_NAME, KERNELS(float), KERNELS(double), {slice_queries, most_members, slice_bytes, slice, assign_block,
                                                 update_centroids}};

}  // namespace attention_ext
