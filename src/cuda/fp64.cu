// Copyright: Contributors to the autopilot.gpu collection
// SPDX-License-Identifier: Apache-2.0
//
// The rate of multiply-adds in double precision, outside the tensor cores: each thread follows eight chains x = x * x - k, which are chaotic for
// k near 2, so that one wrong bit anywhere changes the end of its chain beyond recognition. A correctly rounded fma gives the same end everywhere.

extern "C" __global__ void autopilot_fp64(double *__restrict__ ends, const double *__restrict__ starts, double k, unsigned long long steps)
{
    double x[8];
#pragma unroll
    for (int chain = 0; chain < 8; chain++) x[chain] = starts[chain];
#pragma unroll 4
    for (unsigned long long step = 0; step < steps; step++) {
#pragma unroll
        for (int chain = 0; chain < 8; chain++) x[chain] = __fma_rn(x[chain], x[chain], -k);
    }
    double *own = ends + ((unsigned long long)blockIdx.x * blockDim.x + threadIdx.x) * 8;
#pragma unroll
    for (int chain = 0; chain < 8; chain++) own[chain] = x[chain];
}
