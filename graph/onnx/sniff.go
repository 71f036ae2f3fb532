package onnx

import (
	"bytes"
	"fmt"
	"io"
	"unicode/utf8"
)

// signatures are beginnings of files that are often mistaken for ONNX.
var signatures = []struct {
	offset int
	magic  string
	what   string
}{
	{0, "PK\x03\x04", "a zip archive, such as a PyTorch checkpoint: export the model, with memplan.export or torch.onnx.export"},
	{0, "\x80\x02", "a Python pickle, such as an old PyTorch checkpoint: export the model, with memplan.export or torch.onnx.export"},
	{0, "version https://git-lfs", "a Git LFS pointer; fetch the file with git lfs pull"},
	{0, "\x89PNG", "a PNG image"},
	{0, "\xff\xd8\xff", "a JPEG image"},
	{0, "%PDF", "a PDF document"},
	{0, "\x1f\x8b", "gzip-compressed; decompress it first"},
	{0, "\xfd7zXZ", "xz-compressed; decompress it first"},
	{0, "\x28\xb5\x2f\xfd", "zstd-compressed; decompress it first"},
	{0, "BZh", "bzip2-compressed; decompress it first"},
	{0, "7z\xbc\xaf", "a 7z archive"},
	{0, "GGUF", "a GGUF model"},
	{0, "\x93NUMPY", "a NumPy array"},
	{0, "\x89HDF", "an HDF5 file, such as a Keras model"},
	{0, "\x7fELF", "an executable"},
	{4, "TFL3", "a TensorFlow Lite model"},
	{4, "ORTM", "an ORT-format model"},
	{8, "{\"", "a safetensors file, weights without a graph: export the model, with memplan.export or torch.onnx.export"},
	{0, "<!DOCTYPE", "an HTML page"},
	{0, "<html", "an HTML page"},
	{257, "ustar", "a tar archive"},
}

// sniff replaces err, found while decoding, by a plainer one if the file is
// recognisably something else.
func sniff(r io.ReaderAt, size int64, path string, err error) error {
	head := make([]byte, min(size, 512))
	n, _ := r.ReadAt(head, 0)
	head = head[:n]
	for _, s := range signatures {
		if len(head) > s.offset && bytes.HasPrefix(head[s.offset:], []byte(s.magic)) {
			return fmt.Errorf("%s: not an ONNX model but %s", path, s.what)
		}
	}
	if isText(head) {
		return fmt.Errorf("%s: not an ONNX model but text: give the .onnx file that memplan.export or torch.onnx.export wrote", path)
	}
	if bytes.Trim(head, "\x00") == nil {
		return fmt.Errorf("%s: not an ONNX model but zeros", path)
	}
	return err
}

// isText reports whether b is printable text, a rune cut at its end allowed.
func isText(b []byte) bool {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 && len(b) >= utf8.UTFMax {
			return false
		}
		if r < ' ' && r != '\n' && r != '\r' && r != '\t' || r == 0x7f {
			return false
		}
		b = b[n:]
	}
	return true
}
