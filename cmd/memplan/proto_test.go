package main

import "google.golang.org/protobuf/encoding/protowire"

// A pb is a protobuf message under construction; its methods append a field.
type pb []byte

func (b pb) str(num protowire.Number, s ...string) pb {
	for _, s := range s {
		b = protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
	}
	return b
}

func (b pb) int(num protowire.Number, vs ...int64) pb {
	for _, v := range vs {
		b = protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), uint64(v))
	}
	return b
}

func (b pb) msg(num protowire.Number, ms ...pb) pb {
	for _, m := range ms {
		b = protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), m)
	}
	return b
}

// packed appends integers in one field.
func (b pb) packed(num protowire.Number, vs []int64) pb {
	var p []byte
	for _, v := range vs {
		p = protowire.AppendVarint(p, uint64(v))
	}
	return b.str(num, string(p))
}
