// Which keys the queries of local attention see, and which queries see a key.
#pragma once

#include <stdint.h>

namespace attention_ext {
namespace {

inline int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

// First position of the chunk that holds a position.
template <class Band>
int64_t chunk_start(const Band& band, int64_t position) {
  return band.chunk == 1 ? position : position - position % band.chunk;
}

// What a tile of `count` queries sees through its windows.
struct Sight {
  int64_t from, end;          // keys that some query sees
  int64_t all_from, all_end;  // keys that all queries see; none if all_from ≥ all_end

  template <class Band>
  Sight(const Band& band, int64_t query, int64_t count) {
    const int64_t first = chunk_start(band, query), last = chunk_start(band, query + count - 1);
    from = later(first - band.left, 0);
    end = earlier(last + band.chunk + band.right, band.length);
    all_from = last - band.left;
    all_end = earlier(first + band.chunk + band.right, band.length);
  }
};

// The queries first … end − 1 that see a key through their windows, counted from `query`: those of the chunks from the
// one of key − right to the one of key + left.
struct Seers {
  int64_t first, end;

  template <class Band>
  Seers(const Band& band, int64_t query, int64_t key)
      : first(chunk_start(band, later(key - band.right, 0)) - query),
        end(chunk_start(band, key + band.left) + band.chunk - query) {}
};

}  // namespace
}  // namespace attention_ext
