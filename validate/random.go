package validate

import "math"

// golden is 2^64 divided by the golden ratio: the increment of SplitMix64.
const golden = 0x9e3779b97f4a7c15

// Mix is the output function of SplitMix64 (Steele, Lea, Flood 2014): a
// bijection of 64-bit numbers. Random numbers are indexed, not drawn in order:
// number i of seed s is Mix(s + (i+1)*golden), so any device makes the same ones
// in any order, and a call that runs again makes the same ones.
func Mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Uniform returns random number i of a seed in [0,1), a multiple of 2^-24.
func Uniform(seed, i uint64) float64 { return float64(Mix(seed+(i+1)*golden)>>40) / (1 << 24) }

// Normal returns normal number i of a seed by Box and Muller's cosine, from the
// numbers 2i and 2i+1.
func Normal(seed, i uint64) float64 {
	u, v := Uniform(seed, 2*i), Uniform(seed, 2*i+1)
	return math.Sqrt(-2*math.Log1p(-u)) * math.Cos(2*math.Pi*v)
}

// Below returns integer number i of a seed in [0,n).
func Below(seed, i uint64, n int64) int64 {
	return int64(Uniform(seed, i) * float64(n))
}

// nameSeed returns the seed of a name (FNV-1a).
func nameSeed(seed uint64, name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return Mix(seed + h)
}
