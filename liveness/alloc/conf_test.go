package alloc

import (
	"strings"
	"testing"
)

// TestParseConf: the second column is what torch 2.15 says to the same string
// (torch._C._accelerator_setAllocatorSettings), the third why we differ.
func TestParseConf(t *testing.T) {
	const MiB = 1 << 20
	tests := []struct {
		in    string
		torch bool
		why   string
		want  Conf
	}{
		{in: "", torch: true},
		{in: " expandable_segments : True ", torch: true, want: Conf{ExpandableSegments: true}},
		{in: "expandable_segments:True,", torch: true, want: Conf{ExpandableSegments: true}},
		{in: "expandable_segments:True,expandable_segments:False", torch: true},
		{in: "expandable_segments:true"},
		{in: "expandable_segments"},
		{in: "expandable_segments=True"},
		{in: ",expandable_segments:True"},
		{in: "expandable_segments:True,,max_split_size_mb:30"},
		{in: "foo:1"},
		{in: "max_split_size_mb:20", torch: true, want: Conf{MaxSplitSize: 20 * MiB}},
		{in: "max_split_size_mb:19"},
		{in: "max_split_size_mb:abc"},
		{in: "max_split_size_mb:[20]"},
		{in: "max_split_size_mb:-5", torch: true, why: "torch reads a huge number"},
		{in: "max_split_size_mb:30x", torch: true, why: "torch reads 30"},
		{in: "large_segment_size_mb:40", torch: true, want: Conf{LargeSegmentSize: 40 * MiB}},
		{in: "large_segment_size_mb:10"},
		{in: "large_segment_size_mb:40,max_split_size_mb:30"},
		{in: "max_split_size_mb:30,large_segment_size_mb:40"},
		{in: "large_segment_size_mb:40,max_non_split_rounding_mb:30"},
		{in: "max_non_split_rounding_mb:20", torch: true, want: Conf{MaxNonSplitRounding: 20 * MiB}},
		{in: "garbage_collection_threshold:0.8", torch: true, want: Conf{GarbageCollectionThreshold: .8}},
		{in: "garbage_collection_threshold:1.5"},
		{in: "garbage_collection_threshold:0"},
		{in: "garbage_collection_threshold:NaN"},
		{in: "backend:native", torch: true},
		{in: "backend:cudaMallocAsync", torch: true, why: "another allocator"},
		{in: "per_process_memory_fraction:0.5", torch: true, why: "the cap is given in bytes"},
		{in: "pinned_reserve_segment_size_mb:5,pinned_use_background_threads:True,max_split_size_mb:21", torch: true, want: Conf{MaxSplitSize: 21 * MiB}},
		{in: "roundup_power2_divisions:3"},
		{in: "roundup_power2_divisions:0"},
		{in: "roundup_power2_divisions:4,expandable_segments:True", torch: true, want: Conf{ExpandableSegments: true,
			RoundupPower2Divisions: [16]int64{4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}}},
		// The example of PyTorch's own test of its parser.
		{in: "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]", torch: true,
			want: Conf{RoundupPower2Divisions: [16]int64{8, 8, 8, 8, 8, 8, 8, 2, 4, 2, 4, 1, 1, 1, 1, 1}}},
		{in: "roundup_power2_divisions:[64:0,>:2]", torch: true, want: Conf{RoundupPower2Divisions: [16]int64{7: 2, 2, 2, 2, 2, 2, 2, 2, 2}}},
		{in: "roundup_power2_divisions:[]", torch: true},
		{in: "roundup_power2_divisions:[>:2]", torch: true, want: Conf{RoundupPower2Divisions: [16]int64{0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}}},
		{in: "roundup_power2_divisions:[60:2]"},
		{in: "roundup_power2_divisions:[64:3]"},
		{in: "roundup_power2_divisions:[64:8,128:2"},
		{in: "roundup_power2_divisions:[64:8 128:2]"},
	}
	for _, tt := range tests {
		got, err := ParseConf(tt.in)
		if (err == nil) != (tt.torch && tt.why == "") {
			t.Errorf("%q: error %v, torch accepts: %v (%s)", tt.in, err, tt.torch, tt.why)
		}
		if err == nil && got != tt.want {
			t.Errorf("%q: %+v, want %+v", tt.in, got, tt.want)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "allocator option ") {
			t.Errorf("%q: error %q does not name its subject", tt.in, err)
		}
	}
}

// TestRound: sizes rounded by hand after the comment on
// roundup_power2_next_division, and 512-byte rounding.
func TestRound(t *testing.T) {
	const MiB = 1 << 20
	four, err := ParseConf("roundup_power2_divisions:4")
	if err != nil {
		t.Fatal(err)
	}
	list, err := ParseConf("roundup_power2_divisions:[64:8,128:2,>:1]")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		conf       Conf
		size, want int64
	}{
		{Conf{}, 1, 512}, {Conf{}, 512, 512}, {Conf{}, 513, 1024}, {Conf{}, 5 * MiB, 5 * MiB},
		{four, 1, 512}, {four, 2048, 2048}, {four, 2049, 2560}, {four, 1200 * 1024, 1280 * 1024}, {four, 1281 * 1024, 1536 * 1024}, {four, 1793 * 1024, 2048 * 1024}, {four, 2 * MiB, 2 * MiB},
		{list, 65 * MiB, 72 * MiB}, {list, 129 * MiB, 192 * MiB}, {list, 257 * MiB, 257 * MiB}, {list, 3*MiB + 1, 3*MiB + MiB/4},
	}
	for _, tt := range tests {
		if got := tt.conf.round(tt.size); got != tt.want {
			t.Errorf("%v: %d rounds to %d, want %d", tt.conf.RoundupPower2Divisions, tt.size, got, tt.want)
		}
	}
}

// FuzzConf: whatever is accepted can be worked with.
func FuzzConf(f *testing.F) {
	for _, s := range confs {
		f.Add(s)
	}
	f.Add("roundup_power2_divisions:[64:8,128:2,>:1]")
	f.Fuzz(func(t *testing.T, s string) {
		conf, err := ParseConf(s)
		if err != nil {
			return
		}
		c := NewCaching(conf, 1<<30)
		for _, n := range []int64{1, 5000, 3 << 20, 700 << 20} {
			h, err := c.Alloc(n)
			if err == nil && n == 3<<20 {
				c.Free(h)
			}
		}
		if err := c.Check(); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
	})
}
