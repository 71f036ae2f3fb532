package shard

import "math"

// Constants of ATen/native/cuda/TensorShape.cu: threads of a block, and bytes
// that a thread copies.
const (
	blockSize      = 128
	bytesPerThread = 16
	tile           = blockSize * bytesPerThread
)

// splitTable returns the bytes of the table that split_with_sizes_copy puts on the
// device: for each tensor its address, its source and its bytes, for each block which
// tensor it copies, and prefix sums of blocks. chunks are the bytes of each tensor on
// one rank.
func (d Device) splitTable(chunks []int64, ranks int64) int64 {
	var blocks int64
	for _, c := range chunks {
		blocks += ceilDiv(c, tile)
	}
	most := int64(d.SMs * d.ThreadsPerSM / blockSize * 2)
	if most == 0 {
		most = math.MaxInt64 / 2
	}
	factor := ceilDiv(blocks*ranks, most)
	perBlock := min(int64(math.Ceil(math.Sqrt(float64(factor)))), ranks)
	perChunk := ceilDiv(factor, max(perBlock, 1))
	blocks = 0
	for _, c := range chunks {
		blocks += ceilDiv(c, tile*max(perChunk, 1))
	}
	return 8 * (4*int64(len(chunks)) + 1 + blocks)
}

// chunkCatTable returns the bytes of the table that _chunk_cat puts on the device.
// chunks are the bytes of each padded tensor on one rank.
func chunkCatTable(chunks []int64) int64 {
	var blocks int64
	for _, c := range chunks {
		blocks += ceilDiv(c, tile)
	}
	return 8 * (6*int64(len(chunks)) + 2 + blocks)
}
