// Copyright: Contributors to the autopilot.gpu collection
// SPDX-License-Identifier: Apache-2.0
//
// The rate of the tensor cores: each warp adds the products of one half precision tile with four others to four tiles of floats, again and again.
// The tiles hold small whole numbers, so that every sum is exact below 2^24. The instruction is the oldest one, which every GPU since V100 runs; newer
// GPUs have faster ones, so that the rate compares GPUs of one model and not with a data sheet. Fragments are spelt in PTX: CUDA's own header for
// them needs a package more.

struct Half { unsigned part[8]; };
struct Sums { float part[8]; };

__device__ __forceinline__ void load_left(Half &to, const unsigned short *tile)
{
    asm volatile("wmma.load.a.sync.aligned.row.m16n16k16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], 16;"
                 : "=r"(to.part[0]), "=r"(to.part[1]), "=r"(to.part[2]), "=r"(to.part[3]), "=r"(to.part[4]), "=r"(to.part[5]), "=r"(to.part[6]), "=r"(to.part[7])
                 : "l"(tile) : "memory");
}

__device__ __forceinline__ void load_right(Half &to, const unsigned short *tile)
{
    asm volatile("wmma.load.b.sync.aligned.row.m16n16k16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], 16;"
                 : "=r"(to.part[0]), "=r"(to.part[1]), "=r"(to.part[2]), "=r"(to.part[3]), "=r"(to.part[4]), "=r"(to.part[5]), "=r"(to.part[6]), "=r"(to.part[7])
                 : "l"(tile) : "memory");
}

__device__ __forceinline__ void multiply_add(Sums &c, const Half &a, const Half &b)
{
    asm volatile("wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16, %17, %18, %19, %20, %21, %22, %23}, {%0, %1, %2, %3, %4, %5, %6, %7};"
                 : "+f"(c.part[0]), "+f"(c.part[1]), "+f"(c.part[2]), "+f"(c.part[3]), "+f"(c.part[4]), "+f"(c.part[5]), "+f"(c.part[6]), "+f"(c.part[7])
                 : "r"(a.part[0]), "r"(a.part[1]), "r"(a.part[2]), "r"(a.part[3]), "r"(a.part[4]), "r"(a.part[5]), "r"(a.part[6]), "r"(a.part[7]),
                   "r"(b.part[0]), "r"(b.part[1]), "r"(b.part[2]), "r"(b.part[3]), "r"(b.part[4]), "r"(b.part[5]), "r"(b.part[6]), "r"(b.part[7]));
}

__device__ __forceinline__ void store(float *tile, const Sums &c)
{
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, 16;"
                 :: "l"(tile), "f"(c.part[0]), "f"(c.part[1]), "f"(c.part[2]), "f"(c.part[3]), "f"(c.part[4]), "f"(c.part[5]), "f"(c.part[6]), "f"(c.part[7])
                 : "memory");
}

extern "C" __global__ void autopilot_tensor(
    float *__restrict__ sums, const unsigned short *__restrict__ left, const unsigned short *__restrict__ right, unsigned long long steps)
{
    Half a, b[4];
    Sums c[4];
    load_left(a, left);
#pragma unroll
    for (int tile = 0; tile < 4; tile++) {
        load_right(b[tile], right + tile * 256);
#pragma unroll
        for (int part = 0; part < 8; part++) c[tile].part[part] = 0.0f;
    }
    for (unsigned long long step = 0; step < steps; step++) {
#pragma unroll
        for (int tile = 0; tile < 4; tile++) multiply_add(c[tile], a, b[tile]);
    }
    float *own = sums + ((unsigned long long)blockIdx.x * blockDim.x + threadIdx.x) / 32 * 1024;
#pragma unroll
    for (int tile = 0; tile < 4; tile++) store(own + tile * 256, c[tile]);
}
