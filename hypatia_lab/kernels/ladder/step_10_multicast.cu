// Step 10 of the ladder, multicast: two blocks a cluster share each tile of w, and each fetches half of it for both.

#include "step_9_wgmma.cu"

// ---- kernels

// [step_multicast]
template <int CLUSTER> struct Blocks {
    static __device__ inline void fetch(unsigned to, const TensorMap& map, int k, int row, unsigned arrived) {
        fetch_box_for((1 << CLUSTER) - 1, to, map, k, row, arrived);  // (1)
    }
    static __device__ inline void release(unsigned barrier, int lane) {
        if (lane < CLUSTER) arrive_at(barrier, lane);  // (2)
    }
};
// [/step_multicast]
