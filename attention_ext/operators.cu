// All CUDA operators in one translation unit: parsing PyTorch's headers once rather than six times halves the build.
#include "hashing/cuda.cu"
#include "key_grouping/cuda.cu"
#include "kmeans/cuda.cu"

#include "clusters/cuda_dense.cu"

#include "clustered_attention/cuda.cu"
#include "improved_clustered_attention/cuda.cu"
#include "near_attention/cuda.cu"
