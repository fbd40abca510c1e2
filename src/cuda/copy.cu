// Copyright: Contributors to the autopilot.gpu collection
// SPDX-License-Identifier: Apache-2.0
//
// Copies `vectors` times 16 bytes. One of the two sides is device memory, the other is pinned host memory mapped into the
// device's address space, so that the SMs and not a copy engine drive the link. Any grid covers any size.

extern "C" __global__ void autopilot_copy(uint4 *__restrict__ to, const uint4 *__restrict__ from, unsigned long long vectors)
{
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < vectors; i += stride)
        to[i] = from[i];
}
