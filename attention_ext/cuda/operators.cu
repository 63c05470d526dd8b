// All CUDA operators as one unit: reading PyTorch's headers once takes half the time of reading them five times.
#include "../hashing/cuda.cu"
#include "../kmeans/cuda.cu"

#include "../clustered_attention/cuda_dense.cu"

#include "../clustered_attention/cuda.cu"
#include "../improved_clustered_attention/cuda.cu"
