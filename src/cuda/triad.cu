// Copyright: Contributors to the autopilot.gpu collection
// SPDX-License-Identifier: Apache-2.0
//
// The memory's bandwidth: a[i] = b[i] + s * c[i], 24 bytes an element. Fill and count are there so that the result is known: whole numbers
// that a double holds exactly, in periods that no power of two divides. Any grid covers any size.

__device__ __forceinline__ double first(unsigned long long i) { return (double)(i % 65521); }
__device__ __forceinline__ double second(unsigned long long i) { return (double)(i % 8191); }

#define EACH(I) \
    for (unsigned long long I = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x, stride_ = (unsigned long long)gridDim.x * blockDim.x; I < count; I += stride_)

extern "C" __global__ void autopilot_fill(double *__restrict__ b, double *__restrict__ c, unsigned long long count)
{
    EACH(i) {
        b[i] = first(i);
        c[i] = second(i);
    }
}

extern "C" __global__ void autopilot_triad(double2 *__restrict__ a, const double2 *__restrict__ b, const double2 *__restrict__ c, double s, unsigned long long count)
{
    EACH(i) {
        const double2 x = b[i], y = c[i];
        a[i] = make_double2(x.x + s * y.x, x.y + s * y.y);
    }
}

extern "C" __global__ void autopilot_count(const double *__restrict__ a, double s, unsigned long long count, unsigned long long *wrong)
{
    unsigned long long own = 0;
    EACH(i) own += a[i] != first(i) + s * second(i);
    if (own) atomicAdd(wrong, own);
}
