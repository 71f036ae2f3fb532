package graph

// A DType is an element type. The numbers are those of ONNX's
// TensorProto.DataType, so a wire value converts without a table.
type DType int32

// The element types of ONNX IR 14.
const (
	Undefined    DType = 0
	Float32      DType = 1
	Uint8        DType = 2
	Int8         DType = 3
	Uint16       DType = 4
	Int16        DType = 5
	Int32        DType = 6
	Int64        DType = 7
	String       DType = 8
	Bool         DType = 9
	Float16      DType = 10
	Float64      DType = 11
	Uint32       DType = 12
	Uint64       DType = 13
	Complex64    DType = 14
	Complex128   DType = 15
	BFloat16     DType = 16
	Float8E4M3   DType = 17
	Float8E4M3UZ DType = 18
	Float8E5M2   DType = 19
	Float8E5M2UZ DType = 20
	Uint4        DType = 21
	Int4         DType = 22
	Float4E2M1   DType = 23
	Float8E8M0   DType = 24
	Uint2        DType = 25
	Int2         DType = 26
)

// dtypes is the one table of element types: name as ONNX's text form writes
// it, bits an element takes, whether it is a (real) floating-point type.
var dtypes = [...]struct {
	name  string
	bits  int64
	float bool
}{
	Undefined:    {"undefined", 0, false},
	Float32:      {"float", 32, true},
	Uint8:        {"uint8", 8, false},
	Int8:         {"int8", 8, false},
	Uint16:       {"uint16", 16, false},
	Int16:        {"int16", 16, false},
	Int32:        {"int32", 32, false},
	Int64:        {"int64", 64, false},
	String:       {"string", 128, false}, // a (pointer, length) pair; strings never reach a GPU
	Bool:         {"bool", 8, false},
	Float16:      {"float16", 16, true},
	Float64:      {"double", 64, true},
	Uint32:       {"uint32", 32, false},
	Uint64:       {"uint64", 64, false},
	Complex64:    {"complex64", 64, false},
	Complex128:   {"complex128", 128, false},
	BFloat16:     {"bfloat16", 16, true},
	Float8E4M3:   {"float8e4m3fn", 8, true},
	Float8E4M3UZ: {"float8e4m3fnuz", 8, true},
	Float8E5M2:   {"float8e5m2", 8, true},
	Float8E5M2UZ: {"float8e5m2fnuz", 8, true},
	Uint4:        {"uint4", 4, false},
	Int4:         {"int4", 4, false},
	Float4E2M1:   {"float4e2m1", 4, true},
	Float8E8M0:   {"float8e8m0", 8, true},
	Uint2:        {"uint2", 2, false},
	Int2:         {"int2", 2, false},
}

// Valid reports whether d is a known element type other than Undefined.
func (d DType) Valid() bool { return d > 0 && int(d) < len(dtypes) }

// String returns the type's name in ONNX's text form, such as "float16".
func (d DType) String() string {
	if d < 0 || int(d) >= len(dtypes) {
		return "undefined"
	}
	return dtypes[d].name
}

// Bits returns the bits one element takes; 0 for an unknown type.
func (d DType) Bits() int64 {
	if d < 0 || int(d) >= len(dtypes) {
		return 0
	}
	return dtypes[d].bits
}

// Bytes returns the bytes that n elements take, sub-byte types packed and
// rounded up to a whole byte.
func (d DType) Bytes(n int64) int64 { return (n*d.Bits() + 7) / 8 }

// IsFloat reports whether d is a real floating-point type: the types that
// can require a gradient (complex types are not supported in training).
func (d DType) IsFloat() bool { return d > 0 && int(d) < len(dtypes) && dtypes[d].float }

// ParseDType returns the type named by String, or Undefined and false.
func ParseDType(name string) (DType, bool) {
	for d := range dtypes {
		if d != 0 && dtypes[d].name == name {
			return DType(d), true
		}
	}
	return Undefined, false
}
