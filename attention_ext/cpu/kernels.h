// What a CPU kernel set offers: plain functions on plain memory, one table per instruction set.
//
// A function does one task of a parallel loop; the operators (<op>/cpu.cpp) own tensors, loops and scratch.
// Sizes follow the paper: C clusters, D query/key size, E value size, K top keys. A row of C, D, E or K values
// is stored padded to a whole number of vectors (`padded`), the padding zero.
#pragma once

#include <stdint.h>
#include <string.h>

namespace attention_ext {

// A score as an integer of the same order.
template <class T>
struct OrderedOf;
template <>
struct OrderedOf<float> {
  typedef int32_t type;
};
template <>
struct OrderedOf<double> {
  typedef int64_t type;
};
template <class T>
using Ordered = typename OrderedOf<T>::type;

namespace {  // a copy for each instruction set

inline int32_t ordered(float score) {
  score += 0.0f;  // −0 and 0 are equal
  int32_t x;
  memcpy(&x, &score, sizeof(x));
  return x ^ ((x >> 31) & 0x7fffffff);
}

inline int64_t ordered(double score) {
  score += 0.0;
  int64_t x;
  memcpy(&x, &score, sizeof(x));
  return x ^ ((x >> 63) & 0x7fffffffffffffff);
}

inline float score_of(int32_t x) {
  x ^= (x >> 31) & 0x7fffffff;
  float score;
  memcpy(&score, &x, sizeof(x));
  return score;
}

inline double score_of(int64_t x) {
  x ^= (x >> 63) & 0x7fffffffffffffff;
  double score;
  memcpy(&score, &x, sizeof(x));
  return score;
}

}  // namespace

// Dropout on attention weights: weight (row, key) is dropped where a hash of both falls below a threshold. A
// number depends on its place alone, so that backward finds it again and threads don't matter.
struct Dropout {
  double probability;
  uint64_t seed;
};

namespace {

inline uint32_t scramble(uint32_t x) {  // MurmurHash3's last step
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

inline uint32_t row_code(uint64_t seed, uint64_t row) {
  uint64_t x = seed + (row + 1) * 0x9e3779b97f4a7c15ull;  // SplitMix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>((x ^ (x >> 31)) >> 16);
}

inline uint32_t key_code(int64_t key) { return scramble(static_cast<uint32_t>(key) + 0x9e3779b9u); }

inline uint32_t drop_threshold(double probability) { return static_cast<uint32_t>(probability * 4294967296.0); }

template <class T>
inline T keep_factor(uint32_t row, uint32_t key, uint32_t threshold, T factor) {
  return scramble(row ^ key) < threshold ? T(0) : factor;
}

}  // namespace

template <class T>
struct HashTask {
  int64_t rows, D, bits;
  const T* x;
  int64_t stride_x;
  const T* planes_DP;        // transposed and padded, if products are taken in T
  const T* largest_P;        // largest magnitude in each plane, padded
  const double* planes_PD;   // what decides when T cannot
  const int32_t* pairs_JP;   // if products are taken in integers: quantised planes (hashing/hash.h), two numbers in one
  const int32_t* bounds_P;   // what their products must exceed
  float norm;                // the 1-norm that rows are scaled to
  int64_t* hashes;
  T* scratch;                // hash_rows × the larger of padded(bits) and padded_pairs(D)
};

constexpr int triples = 21;  // of the 63 bit planes of hashes

// Assignment of one block of queries, and the change of its clusters' bit counts.
struct AssignTask {
  int64_t queries, C;
  const uint64_t* planes;      // from `slice`
  const int64_t* hashes;
  const int64_t* centroids_C;
  const uint8_t* changed_C;    // centroids that are not those of the last assignment
  bool first;                  // there was none
  int32_t* groups;             // in: the last assignment, −1 for none; out: this one
  uint8_t* distances;          // [queries rounded up to `block`], to their centroids; kept from pass to pass, as is
  uint16_t* patterns_C;        // [C, triples], what was looked up for the centroids
  int16_t* counters_C;         // [C, 64], 0 before the first pass: bits of the members, at most `most_members`
};

// New centroids from the counters of a sequence's blocks, for some clusters.
struct UpdateTask {
  int64_t first, end;
  int64_t blocks, stride;      // between the counters of one block and those of the next
  const int16_t* counters_C;
  int64_t* centroids_C;
  uint8_t* changed_C;
};

template <class T>
struct DenseTask {
  int64_t C, D, E, K;          // K = 0: no top keys wanted
  int64_t first, keys;         // this block's keys: first … first + keys − 1
  const T* centroids_DC;       // mean queries over √D, transposed
  const T* k;                  // of the whole sequence
  const T* v;
  int64_t stride_k, stride_v;
  T* maximum_C;
  T* sum_C;
  T* values_CE;                // Σ exp(score − maximum) · v
  Ordered<T>* top_scores_CK;
  int32_t* top_CK;             // rising positions
  int32_t* top_count_C;
  double dropout;              // probability
  const uint32_t* rows_C;      // row codes
  T *kept, *kept_maxima;       // for backward, if wanted: exponentials of all keys, their maxima by chunk
  char* scratch;
};

template <class T>
struct DenseBackwardTask {
  int64_t C, D, E, K;
  int64_t first, keys;
  const T* centroids_DC;
  const T* centroids_CD;
  const T* grads_EC;           // Σ over members of the output's gradient, transposed
  const T* grads_CE;
  const T* maximum_C;          // of the scores, and 1 / Σ exp(score − maximum)
  const T* inverse_sum_C;
  const T* delta_C;            // Σ over members of gradient · output
  const T* grad_mass_C;        // K > 0: derivative of the loss by the mass of the top keys
  const int32_t* top_CK;
  const int32_t* top_count_C;
  const T* k;
  const T* v;
  int64_t stride_k, stride_v;
  T* grad_k_SD;                // rows of D and E values, written
  T* grad_v_SE;
  T* grad_centroids_CD;        // this block's part
  T scale;
  double dropout;
  const uint32_t* rows_C;
  const T *kept, *kept_maxima;  // what forward kept, or null
  char* scratch;
};

// Attention of one cluster's members over the cluster's top keys.
template <class T>
struct ExactTask {
  int64_t members, D, E, K;
  const int32_t* order;        // the members' positions
  const int32_t* top;          // K positions
  const T *q, *k, *v;
  int64_t stride_q, stride_k, stride_v;
  T scale, mass;
  const T* base_E;             // what the other keys contribute
  T* out_NE;                   // rows of E values
  Dropout dropout;
  uint64_t first_row;          // number of the head's first query among all rows
  T* kept;                     // for backward, if wanted: the members' weights, padded rows
  char* scratch;
};

template <class T>
struct ExactBackwardTask {
  int64_t members, D, E, K;
  const int32_t* order;
  const int32_t* top;
  const T *q, *k, *v, *grad;
  int64_t stride_q, stride_k, stride_v, stride_grad;
  T scale, mass;
  const T* grad_query_D;       // what each member gets through the centroid
  T* grad_q_ND;                // rows of D values, written
  T *grad_k_SD, *grad_v_SE;    // rows that gradients are added to; if null, they are written to …
  T *grad_keys_KD, *grad_values_KE;  // … padded rows
  Dropout dropout;
  uint64_t first_row;
  const T* kept;               // what forward kept, or null
  char* scratch;
};

// Angular hashing of some vectors in one round.
template <class T>
struct BucketTask {
  int64_t rows, D, F;          // F rotations, 2·F buckets
  const T* x;
  int64_t stride_x;
  const T* rotations_DF;       // transposed and padded
  T largest;                   // largest magnitude in them
  const double* rotations_FD;  // what decides when T cannot
  int32_t* buckets;
  T* scratch;                  // bucket_rows × padded(F)
};

// LSH attention: sorted positions of one round and head, `places`, that one task attends from.
template <class T>
struct WindowBlock {
  int64_t chunk, R, round, D, E;
  int64_t first, end;          // the block's places; `first` is a multiple of `chunk`
  const int32_t* order;        // position at each place of this round
  const int32_t* chunk_RN;     // chunk of each position in each round
  int64_t stride_chunk;
  const T *q, *k, *v;
  int64_t stride_q, stride_k, stride_v;
  T scale;
  Dropout dropout;
  uint64_t first_row;          // number of the head's first query among all rows
};

// What queries keep from round to round; after the last one sums are 1/sum (0 where nothing was seen), `out` is
// the output.
template <class T>
struct WindowTask {
  WindowBlock<T> block;
  T *maximum_N, *sum_N, *out_NE;
  char* scratch;
};

template <class T>
struct WindowBackwardTask {
  WindowBlock<T> block;
  const T* grad;
  int64_t stride_grad;
  const T *maximum_N, *inverse_sum_N;
  const T* delta_N;            // gradient · output
  T *grad_q_ND, *grad_k_ND, *grad_v_NE;
  T *spill_keys, *spill_values;  // for the chunk before the block, padded rows
  char* scratch;
};

template <class T>
struct Kernels {
  int64_t width;  // lanes of a vector

  int64_t padded(int64_t n) const { return (n + width - 1) / width * width; }

  int64_t padded_pairs(int64_t D) const { return (D + 2 * width - 1) / (2 * width) * width; }

  int64_t hash_rows;
  bool hash_integers;  // offered
  void (*hash)(const HashTask<T>&);

  // sum[size] += Σ of chosen rows, times weights if given; Σ of chosen rows' products.
  void (*sum_rows)(
      int64_t count, int64_t size, const int32_t* chosen, const T* rows, int64_t stride, const T* weights, T* sum);
  // Σ of the rows of each group; rows follow each other.
  void (*sum_groups)(
      int64_t count, int64_t size, const int32_t* groups, const T* rows, int64_t stride, T* sums, int64_t stride_sums);
  T (*dot_rows)(
      int64_t count, int64_t size, const int32_t* chosen, const T* a, int64_t stride_a, const T* b,
      int64_t stride_b);

  int64_t (*dense_scratch)(int64_t C, int64_t D, int64_t E, int64_t K);  // bytes
  void (*dense)(const DenseTask<T>&);
  // Cut a list in rising positions down to its K best scores in place; returns how many are left.
  int64_t (*select)(int64_t count, int64_t K, Ordered<T>* scores, int32_t* positions);
  T (*weigh_top)(int64_t count, const Ordered<T>* scores, T maximum, T inverse_sum, T* weights);

  int64_t (*dense_backward_scratch)(int64_t C, int64_t D, int64_t E);
  void (*dense_backward)(const DenseBackwardTask<T>&);

  int64_t (*exact_scratch)(int64_t D, int64_t E, int64_t K);
  void (*exact)(const ExactTask<T>&);
  int64_t (*exact_backward_scratch)(int64_t D, int64_t E, int64_t K);
  void (*exact_backward)(const ExactBackwardTask<T>&);

  int64_t bucket_rows;
  void (*bucket)(const BucketTask<T>&);
  int64_t (*window_scratch)(int64_t rows, int64_t window, int64_t R, int64_t D, int64_t E, bool backward);
  void (*window)(const WindowTask<T>&);
  void (*window_backward)(const WindowBackwardTask<T>&);
};

struct WordKernels {
  int64_t block;  // queries in one slice: lanes of one bit plane
  int64_t most_members;  // queries in one block
  int64_t (*slice_bytes)(int64_t queries);
  void (*slice)(int64_t queries, const int64_t* hashes, uint64_t* planes);
  bool (*assign)(const AssignTask&);  // whether any group changed
  void (*update)(const UpdateTask&);
};

struct InstructionSet {
  const char* name;
  Kernels<float> single_precision;
  Kernels<double> double_precision;
  WordKernels words;
};

// The fastest set that this machine can run, or the one chosen by `choose_instruction_set`.
const InstructionSet& instruction_set();
const char* choose_instruction_set(const char* name);  // "" for the fastest; null if it can't run here

template <class T>
const Kernels<T>& kernels();
template <>
inline const Kernels<float>& kernels<float>() {
  return instruction_set().single_precision;
}
template <>
inline const Kernels<double>& kernels<double>() {
  return instruction_set().double_precision;
}

}  // namespace attention_ext
