// [kernel]
__global__ void add(const float* x,
                    float* y, int n) {
    const int first = blockIdx.x;
    if (first >= n) {
        return;
    }
#pragma unroll
    for (int i = first; i < n; ++i) {
        const float two =  // (1)
            2 * x[i];
        if (two > 0) {
            y[i] = two;  // (2)
        } else {
            y[i] = 0;
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (j < n) {
                y[j] += two;
            }
            if (n < 0) {
                y[0] = 1;
                y[1] = 2;
                y[2] = 3;
                y[3] = 4;
                y[4] = 5;
                y[5] = 6;
                y[6] = 7;
            }
            y[j] *= two;
        }
    }
}
// [/kernel]
// as it is told:
__global__ void add(…) {
    // …
    for (int i = first; i < n; ++i) {
        const float two =  // (1)
            2 * x[i];
            // …
            y[i] = two;  // (2)
        // …
        for (int j = 0; j < 4; ++j) {
            if (j < n) {
                y[j] += two;
            }
            // …
            y[j] *= two;
