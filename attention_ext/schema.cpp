// Signatures of the operators; cpu.cpp and cuda.cu register the implementations.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(attention_ext, library) {
  library.def("choose_instruction_set(str name) -> str");
  library.def("instruction_set() -> str");
  library.def("hash_sign(Tensor x, Tensor planes) -> Tensor");
  library.def("subtract_mean(Tensor x, Tensor lengths) -> Tensor");
  library.def(
      "key_groups(Tensor q, Tensor k, Tensor query_lengths, Tensor key_lengths, int clusters, int rank, "
      "int iterations) -> Tensor");
  library.def("hamming_kmeans(Tensor hashes, Tensor lengths, int clusters, int iterations, int bits) -> Tensor");
  library.def(
      "clustered_attention(Tensor q, Tensor k, Tensor v, Tensor groups, Tensor query_lengths, "
      "Tensor key_lengths, int clusters, float dropout, Tensor? seed, bool keep_weights=False) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "clustered_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor groups, "
      "Tensor query_lengths, Tensor key_lengths, int clusters, float dropout, Tensor? seed, Tensor softmax, Tensor "
      "values, Tensor kept) "
      "-> (Tensor, Tensor, Tensor)");
  library.def(
      "improved_clustered_attention(Tensor q, Tensor k, Tensor v, Tensor groups, Tensor query_lengths, "
      "Tensor key_lengths, int clusters, int topk, float dropout, Tensor? seed, bool keep_weights=False) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "improved_clustered_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor groups, "
      "Tensor query_lengths, Tensor key_lengths, int clusters, float dropout, Tensor? seed, Tensor softmax, Tensor "
      "values, Tensor mass, "
      "Tensor top, Tensor kept, Tensor out) -> (Tensor, Tensor, Tensor)");
  library.def("lsh_buckets(Tensor x, Tensor rotations, Tensor lengths) -> Tensor");
  library.def(
      "lsh_attention(Tensor q, Tensor k, Tensor v, Tensor buckets, Tensor lengths, int chunk, float dropout, "
      "Tensor? seed) -> (Tensor, Tensor, Tensor)");
  library.def(
      "lsh_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor lengths, int chunk, float dropout, "
      "Tensor? seed, Tensor out, Tensor softmax, Tensor order) -> (Tensor, Tensor, Tensor)");
  library.def(
      "local_attention(Tensor q, Tensor k, Tensor v, Tensor lengths, int left, int right, int chunk, "
      "int globals, float dropout, Tensor? seed, Tensor? bias=None) -> (Tensor, Tensor)");
  library.def(
      "local_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor lengths, int left, int right, "
      "int chunk, int globals, float dropout, Tensor? seed, Tensor? bias, Tensor out, Tensor softmax) "
      "-> (Tensor, Tensor, Tensor)");
  library.def(
      "near_attention(Tensor q, Tensor k, Tensor v, Tensor groups, Tensor lengths, int clusters, int topk, int window, "
      "float dropout, Tensor? seed, bool keep_weights=False) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "near_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor groups, Tensor lengths, int clusters, "
      "int window, float dropout, Tensor? seed, Tensor out, Tensor softmax, Tensor far, Tensor top, Tensor kept) "
      "-> (Tensor, Tensor, Tensor)");
}
