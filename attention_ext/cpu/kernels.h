// Interface of the CPU kernels: plain functions on plain memory, one table per instruction set.
//
// A function performs one task of a parallel loop; the operators (<op>/cpu.cpp) own tensors, loops and scratch.
// Sizes follow the paper: C clusters, D query/key size, E value size, K top keys. Rows of C, D, E or K values
// are zero-padded to a whole number of vectors (`padded`).
#pragma once

#include <stdint.h>
#include <string.h>

namespace attention_ext {

// Type of a score mapped to an integer with the same ordering.
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

namespace {  // one copy per instruction set

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

// Dropout on attention weights: weight (row, key) is dropped if a hash of both falls below a threshold. The hash
// depends on the position alone, so that backward reproduces it and the number of threads does not matter.
struct Dropout {
  double probability;
  uint64_t seed;
};

namespace {

inline uint32_t scramble(uint32_t x) {  // finaliser of MurmurHash3
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

// Sign hashes of a block of vectors.
template <class T>
struct HashTask {
  int64_t rows, D, bits;
  const T* x;
  int64_t stride_x;
  const T* planes_DP;       // for products in T: transposed and padded
  const T* largest_P;       // largest magnitude in each plane, padded
  const double* planes_PD;  // for products that T cannot decide
  const int32_t* pairs_JP;  // for products in integers: quantised planes, two elements each (hashing/hash.h), or null
  const int32_t* bounds_P;  // integer products beyond ±bound have a certain sign
  float norm;               // 1-norm to which rows are scaled
  int64_t* hashes;
  T* scratch;  // hash_rows × the larger of padded(bits) and padded_pairs(D)
};

constexpr int64_t most_key_dims = 256;  // head size for grouping by keys
constexpr int64_t nearest_tile = 4;     // centroids compared at once

constexpr int triples = 21;  // groups of three among the 63 bit planes

// Assignment of one block of queries to clusters; updates the clusters' bit counts.
struct AssignTask {
  int64_t queries, C;
  const uint64_t* planes;  // from `slice`
  const int64_t* hashes;
  const int64_t* centroids_C;
  const uint8_t* changed_C;  // whether a centroid has changed since the last assignment
  bool first;                // no assignment yet
  int32_t* groups;           // in: the last assignment, −1 for none; out: this one
  uint8_t* distances;        // [queries rounded up to `block`], to their centroids; kept between iterations
  uint16_t* patterns_C;      // [C, triples], table offsets of the centroids
  int16_t* counters_C;       // [C, 64], bit counts of at most `most_members` members; zero before the first iteration
};

// New centroids of some clusters from the counters of all blocks of a sequence.
struct UpdateTask {
  int64_t first, end;
  int64_t blocks, stride;  // distance between the counters of consecutive blocks
  const int16_t* counters_C;
  int64_t* centroids_C;
  uint8_t *changed_C, *empty_C;
};

// Attention of all centroids over one block of keys. If the top keys stay apart (`dense_apart`), maximum, sum and
// values are those of the other keys; without any, `lowest_score` and zeros.
template <class T>
struct DenseTask {
  int64_t C, D, E, K;     // K = 0: no top keys
  int64_t first, keys;    // the block's keys: first … first + keys − 1
  const T* centroids_DC;  // mean queries over √D, transposed
  const T* k;             // of the whole sequence
  const T* v;
  int64_t stride_k, stride_v;
  T* maximum_C;
  T* sum_C;
  T* values_CE;  // Σ exp(score − maximum) · v
  Ordered<T>* top_scores_CK;
  int32_t* top_CK;  // ascending positions
  int32_t* top_count_C;
  double dropout;          // probability
  const uint32_t* rows_C;  // row codes
  T *kept, *kept_maxima;   // exponentials and per-chunk maxima for backward, or null
  T* scores;               // `dense_apart` stores scores here, a padded row of C per key of the sequence, or null
  char* scratch;
};

template <class T>
struct DenseBackwardTask {
  int64_t C, D, E, K;
  int64_t first, keys;
  const T* centroids_DC;
  const T* centroids_CD;
  const T* grads_EC;  // output gradients summed over members, transposed
  const T* grads_CE;
  const T* maximum_C;      // of the scores
  const T* inverse_sum_C;  // 1 / Σ exp(score − maximum)
  const T* delta_C;        // gradient · output, summed over members
  const T* grad_mass_C;    // K > 0: derivative with respect to the mass of the top keys, unless they stay apart
  T* scores_SC;            // then: the scores, padded rows, which dense_scores writes; `lowest_score` for top keys
  const T* slopes_SC;      // and gradients of the scores from the members' near keys, padded rows
  const int32_t* top_CK;
  const int32_t* top_count_C;
  const T* k;
  const T* v;
  int64_t stride_k, stride_v;
  T* grad_k_SD;  // rows of D and E values; overwritten, or added to if the top keys stay apart
  T* grad_v_SE;
  T* grad_centroids_CD;  // contribution of this block
  T scale;
  double dropout;
  const uint32_t* rows_C;
  const T *kept, *kept_maxima;  // from forward, or null
  char* scratch;
};

// Attention of one cluster's members over the cluster's top keys.
template <class T>
struct ExactTask {
  int64_t members, D, E, K;
  const int32_t* order;  // positions of the members
  const int32_t* top;    // K positions
  const T *q, *k, *v;
  int64_t stride_q, stride_k, stride_v;
  T scale, mass;
  const T* base_E;  // output of the other keys, or null
  T* out_NE;        // rows of E values
  T *maximum_N,
      *sum_N;  // if not null: weights are exp(score − maximum), stored here with their sum; `mass` is not used
  Dropout dropout;
  uint64_t first_row;  // index of the head's first query among all rows
  T* kept;             // weights of the members for backward, padded rows, or null
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
  const T *maximum_N, *inverse_sum_N, *delta_N;  // if not null: the softmax over all keys; `mass` is not used
  const T* grad_query_D;             // each member's gradient through the centroid, or null to add to grad_q_ND,
  const T* share_D;                  // and, if not null, this too
  T* grad_q_ND;                      // rows of D values, overwritten
  T *grad_k_SD, *grad_v_SE;          // rows to add the keys' gradients to, or null to write them to
  T *grad_keys_KD, *grad_values_KE;  // these padded rows
  Dropout dropout;
  uint64_t first_row;
  const T* kept;  // from forward, or null
  char* scratch;
};

// Angular hashing of some vectors in one round.
template <class T>
struct BucketTask {
  int64_t rows, D, F;  // F rotations, 2·F buckets
  const T* x;
  int64_t stride_x;
  const T* rotations_DF;       // padded
  T largest;                   // largest magnitude among the rotations
  const double* rotations_FD;  // for projections that T cannot decide
  int32_t* buckets;
  T* scratch;  // bucket_rows × padded(F)
};

// LSH attention: the queries of one task, a block of one head's sorted positions ("places") in one round.
template <class T>
struct WindowBlock {
  int64_t chunk, R, round, D, E;
  int64_t first, end;       // places; `first` is a multiple of `chunk`
  const int32_t* order;     // position at each place of this round
  const int32_t* chunk_RN;  // chunk of each position in each round
  int64_t stride_chunk;
  const T *q, *k, *v;
  int64_t stride_q, stride_k, stride_v;
  T scale;
  Dropout dropout;
  uint64_t first_row;  // index of the head's first query among all rows
};

// The running softmax and output carried from round to round. After the last round, sums are 1/sum (0 for a query
// that saw no key) and `out` is the output.
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
  const T* delta_N;  // gradient · output
  T *grad_q_ND, *grad_k_ND, *grad_v_NE;
  T *spill_keys, *spill_values;  // gradients of the chunk before the block, padded rows
  char* scratch;
};

// Local attention: a block of one head's queries.
template <class T>
struct BandBlock {
  int64_t D, E;
  int64_t left, right, chunk;  // query i sees `left` keys before the chunk of i, the chunk, and `right` keys after it
  int64_t globals;             // first positions, at most the length, that see all and are seen by all
  int64_t length;              // valid positions
  int64_t first, end;          // the block's queries
  const T *q, *k, *v;          // of the whole head
  int64_t stride_q, stride_k, stride_v;
  T scale;
  const T* bias;  // addend of each key's scores, or null
  Dropout dropout;
  uint64_t first_row;  // index of the head's first query among all rows
};

template <class T>
struct BandTask {
  BandBlock<T> block;
  T *maximum_N, *inverse_sum_N, *out_NE;
  char* scratch;
};

// Rows of gradients are padded. Tasks whose blocks are not neighbours write different rows of grad_k and grad_v, except
// those of global positions, which go to the task's own `spill_…`.
template <class T>
struct BandBackwardTask {
  BandBlock<T> block;
  const T* grad;
  int64_t stride_grad;
  const T *maximum_N, *inverse_sum_N;
  const T* delta_N;  // gradient · output
  T *grad_q, *grad_k, *grad_v;
  T *spill_queries, *spill_keys, *spill_values;
  char* scratch;
};

// If a query's weights sum to less than the far keys' weight in its cluster, divided by this, the difference has lost
// accuracy: the query must be rescued.
constexpr int near_least_share = 4;

// Numbers that a tile of `near_tile` queries keeps for backward: the scores of every key in its windows; none if these
// keys are more than are processed at a time.
constexpr int64_t near_tile = 16, near_most_keys = 256;
constexpr int64_t near_kept(int64_t window) {
  const int64_t keys = near_tile + 2 * window;
  return keys > near_most_keys ? 0 : keys * near_tile;
}

// The near field of a block of one head's queries: their windows, joined with what their clusters' top keys and far
// keys contribute.
template <class T>
struct NearTask {
  BandBlock<T> block;  // without global positions
  int64_t C, K;
  const int32_t* groups_N;
  const T* centroids_CD;  // mean queries over √D, padded rows
  const int32_t* top_CK;  // ascending positions, then −1
  const uint32_t* rows_C;
  const T *far_maximum_C, *far_sum_C;  // Σ exp(score − maximum) over the keys that are not top keys
  const T* far_values_CE;
  T *maximum_N, *sum_N;  // in: those of the top keys; out: maximum and 1 / Σ of all keys, unless rescued
  T* out_NE;             // in: Σ exp(score − maximum) · v over the top keys; out: attention, unless rescued
  const T* scores_NC;    // the centroids' scores of all keys, padded rows, `lowest_score` for top keys; or null
  int64_t padded_C;
  uint8_t* rescued_N;  // out: whether the far keys' sums cancelled, so that `rescue` must process the query
  T* kept;             // scores of the block's tiles for backward, or null
  char* scratch;
};

template <class T>
struct NearBackwardTask {
  BandBlock<T> block;
  const int32_t* groups_N;
  const T* scores_NC;  // the centroids' scores of all keys, padded rows, `lowest_score` for top keys
  const uint32_t* rows_C;
  const T* grad;
  int64_t stride_grad;
  const T *maximum_N, *inverse_sum_N;
  const T* delta_N;          // gradient · output
  const uint8_t* rescued_N;  // queries to leave out
  T* grad_q_ND;              // rows of D values, overwritten
  T *grad_k_ND, *grad_v_NE;  // rows to add to
  T* slopes_NC;              // gradients of the centroids' scores of all keys, padded rows, to add to
  int64_t padded_C;
  const T* kept;  // from forward, or null
  char* scratch;
};

// Queries of one cluster whose windows hold nearly all that the cluster gives to its far keys.
template <class T>
struct RescueTask {
  int64_t count;
  const int32_t* queries;  // ascending
  int64_t D, E, K, window, length;
  const T* centroid_D;  // over √D
  const int32_t* top;   // K positions
  const T *q, *k, *v;
  int64_t stride_q, stride_k, stride_v;
  T scale;
  Dropout dropout;
  uint64_t first_row;
  uint32_t row_code;              // of the cluster
  T *maximum_N, *sum_N, *out_NE;  // as in NearTask
  // Backward only.
  const T* grad;
  int64_t stride_grad;
  const T *inverse_sum_N, *delta_N;
  T *grad_q_ND, *grad_k_ND, *grad_v_NE;
  T* grad_centroid_D;  // to add to
  T* scratch;          // length + 2 · (D + E) values
};

template <class T>
struct Kernels {
  int64_t width;  // lanes of a vector

  int64_t padded(int64_t n) const { return (n + width - 1) / width * width; }

  int64_t padded_pairs(int64_t D) const { return (D + 2 * width - 1) / (2 * width) * width; }

  int64_t hash_rows;
  bool hash_integers;  // whether products in integers are supported
  void (*hash)(const HashTask<T>&);

  T (*largest_value)(int64_t rows, int64_t D, const T* x, int64_t stride, T* scratch);
  void (*sum_steps)(int64_t rows, int64_t D, const T* x, int64_t stride, T step, double* sums);
  void (*subtract_row)(int64_t rows, int64_t D, const T* x, int64_t stride, const T* mean, T* to);

  void (*shift_rows)(
      int64_t count, int64_t size, const int32_t* chosen, const T* rows, int64_t stride, const T* first, double* to);

  void (*sum_rows)(
      int64_t count, int64_t size, const int32_t* chosen, const T* rows, int64_t stride, const T* weights, T* sum);
  void (*sum_groups)(
      int64_t count, int64_t size, const int32_t* groups, const T* rows, int64_t stride, T* sums, int64_t stride_sums);
  T (*dot_rows)(
      int64_t count, int64_t size, const int32_t* chosen, const T* a, int64_t stride_a, const T* b, int64_t stride_b);

  void (*dot_each)(
      int64_t count, int64_t size, const int32_t* chosen, const T* a, int64_t stride_a, const T* b, int64_t stride_b,
      T* to);

  int64_t (*dense_scratch)(int64_t C, int64_t E, int64_t K, bool apart);  // bytes
  void (*dense)(const DenseTask<T>&);
  void (*dense_apart)(const DenseTask<T>&);
  int64_t (*select)(int64_t count, int64_t K, Ordered<T>* scores, int32_t* positions);
  T (*weigh_top)(int64_t count, const Ordered<T>* scores, T maximum, T inverse_sum, T* weights);
  int64_t (*dense_backward_scratch)(int64_t C, int64_t D, int64_t E);
  void (*dense_backward)(const DenseBackwardTask<T>&);
  void (*dense_scores)(const DenseBackwardTask<T>&);
  void (*dense_backward_apart)(const DenseBackwardTask<T>&);

  int64_t (*exact_scratch)(int64_t D, int64_t E, int64_t K);
  void (*exact)(const ExactTask<T>&);
  int64_t (*exact_backward_scratch)(int64_t D, int64_t E, int64_t K);
  void (*exact_backward)(const ExactBackwardTask<T>&);

  int64_t bucket_rows;
  void (*bucket)(const BucketTask<T>&);
  int64_t (*window_scratch)(int64_t rows, int64_t window, int64_t R, int64_t D, int64_t E, bool backward);
  void (*window)(const WindowTask<T>&);
  void (*window_backward)(const WindowBackwardTask<T>&);

  int64_t (*band_scratch)(int64_t D, int64_t E, bool backward);
  void (*band)(const BandTask<T>&);
  void (*band_backward)(const BandBackwardTask<T>&);

  int64_t (*near_scratch)(int64_t D, int64_t E, bool backward);
  void (*near)(const NearTask<T>&);
  void (*near_backward)(const NearBackwardTask<T>&);
  void (*rescue)(const RescueTask<T>&);
  void (*rescue_backward)(const RescueTask<T>&);
};

struct WordKernels {
  int64_t block;         // queries in a slice: lanes of a bit plane
  int64_t most_members;  // queries in a block
  int64_t (*slice_bytes)(int64_t queries);
  void (*slice)(int64_t queries, const int64_t* hashes, uint64_t* planes);
  void (*assign)(const AssignTask&);
  void (*update)(const UpdateTask&);
};

// K-means in the metric of the keys (key_grouping/points.h). Rows of D or rank numbers are padded.
struct PointKernels {
  int64_t width;  // doubles in a vector
  int64_t block;  // points compared at once

  int64_t padded(int64_t n) const { return (n + width - 1) / width * width; }
  int64_t rounded(int64_t n) const { return (n + block - 1) / block * block; }
  int64_t tiled(int64_t C) const { return (C + nearest_tile - 1) / nearest_tile * nearest_tile; }

  void (*covariance)(int64_t count, int64_t D, const double* x, double* covariance);
  void (*factor)(int64_t D, int64_t rank, const double* covariance, double* factor, double* scratch);
  double (*project)(int64_t count, int64_t D, int64_t rank, const double* x, const double* factor, double* points);
  void (*round)(int64_t count, int64_t rank, double farthest, double* points, int32_t* pairs, int64_t* codes);
  void (*pack)(int64_t C, int64_t rank, const double* centroids, int32_t* pairs, int32_t* squares);
  void (*nearest)(
      int64_t count, int64_t C, int64_t rank, const int32_t* points, const int32_t* centroids, const int32_t* squares,
      int32_t* groups);
  void (*sum)(
      int64_t count, int64_t size, const int32_t* groups, const double* points, int64_t stride, double* sums,
      int64_t stride_sums);
};

// Local attention of one head on tiles of bfloat16, without global positions (local_attention/tile_bands.h). Where
// queries are not positions, as centroids, windows hold all keys.
struct TileBand {
  int64_t D, E;
  int64_t left, right, chunk, length;  // as in BandBlock; `length` counts keys
  const uint16_t *q, *k, *v;
  int64_t stride_q, stride_k, stride_v;
  float scale;
  const float* bias;  // addend of each key's scores, or null
  Dropout dropout;
  uint64_t first_row;
  int64_t first_key;  // position of the first key, for dropout
};

struct TileTask {
  TileBand band;
  int64_t first, end;  // queries
  float *maximum_N, *inverse_sum_N;
  uint16_t* out_NE;
  float* wide_out_NE;      // if not null, the output goes here instead
  char *packed, *scratch;  // `packed` is what `pack` wrote
};

// A whole head. Its gradients are overwritten.
struct TileBackwardTask {
  TileBand band;
  int64_t queries;
  const uint16_t *grad, *out;
  int64_t stride_grad, stride_out;
  const float *maximum_N, *inverse_sum_N;
  uint16_t *grad_q, *grad_k, *grad_v;
  float* wide_grad_q;  // if not null, the queries' gradients go here instead
  char *packed, *scratch;
};

// Kernels on products of bfloat16 in tiles: AMX, or AVX512_BF16.
struct TileKernels {
  int64_t (*packed_bytes)(const TileBand&, bool backward);
  void (*pack)(const TileBand&, bool backward, char* packed);
  int64_t (*scratch)(int64_t D, int64_t E);
  void (*attend)(const TileTask&);
  int64_t (*backward_scratch)(const TileBand&);
  void (*backward)(const TileBackwardTask&);
};

// Conversion of bfloat16 rows, and their sums over groups (halves.h).
struct HalfKernels {
  void (*widen)(int64_t rows, int64_t size, const uint16_t* from, int64_t stride, float* to);
  void (*sum_groups)(
      int64_t rows, int64_t size, const int32_t* groups, const uint16_t* from, int64_t stride, float* sums);
  void (*narrow)(int64_t count, const float* from, uint16_t* to);
};

struct InstructionSet {
  const char* name;
  Kernels<float> single_precision;
  Kernels<double> double_precision;
  WordKernels words;
  PointKernels points;
  HalfKernels halves;
  const TileKernels* tiles = nullptr;  // if the machine has such products
};

// The set selected by `choose_instruction_set`, by default the fastest that this machine supports.
const InstructionSet& instruction_set();

// Select a set by name, or the fastest for "". Returns its name, or null if this machine does not support it.
const char* choose_instruction_set(const char* name);

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
