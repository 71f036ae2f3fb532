// Command gen compiles the kernels: it writes the operator table as C and runs
// nvcc (CUDA 11.8, Debian's nvidia-cuda-toolkit) on every file in kernels. Run
// it through "go generate ./validate/cuda". NVCC names another compiler, and
// NVCCFLAGS adds flags.
package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/memplan/memplan/validate/cuda"
)

// tensorCores are the kernels that need instructions of compute capability 8.0;
// every other file serves all cards from 5.2 on.
const tensorCores = "_sm80.cu"

func main() {
	if err := generate("kernels"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// generate writes the tables and compiles every file of a folder.
func generate(dir string) error {
	if err := writeTables(dir); err != nil {
		return err
	}
	sources, err := filepath.Glob(filepath.Join(dir, "*.cu"))
	if err != nil || len(sources) == 0 {
		return fmt.Errorf("no kernels in %s: %w", dir, errors.Join(err, fs.ErrNotExist))
	}
	for _, src := range sources {
		if err := compile(src); err != nil {
			return err
		}
	}
	return nil
}

// writeTables writes the operators as the C files that pointwise.cu includes.
func writeTables(dir string) error {
	var reals, ints, hot, wide strings.Builder
	for code, op := range cuda.Operators {
		fmt.Fprintf(&reals, "REAL(%d, %s)\n", code, op.Real)
		if op.Int != "" {
			fmt.Fprintf(&ints, "INTEGER(%d, %s)\n", code, op.Int)
		}
		if op.Hot {
			fmt.Fprintf(&hot, "HOT(%s, %d, %d)\n", op.Name, code, op.Inputs)
		}
		if op.Wide {
			fmt.Fprintf(&wide, "WIDE(%d)\n", code)
		}
	}
	for name, text := range map[string]string{"real": reals.String(), "int": ints.String(), "hot": hot.String(), "wide": wide.String()} {
		if err := os.WriteFile(filepath.Join(dir, "pointwise_"+name+".inc"), []byte("// Written by go generate from pointwise.go.\n"+text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compile turns one file into PTX, which the driver compiles for the card it
// finds, and packs it.
func compile(src string) error {
	nvcc := os.Getenv("NVCC")
	if nvcc == "" {
		nvcc = "nvcc"
	}
	arch := "compute_52"
	if strings.HasSuffix(src, tensorCores) {
		arch = "compute_80"
	}
	args := []string{"-ptx", "-arch=" + arch, "-O3", "-std=c++14", "-allow-unsupported-compiler", "-Wno-deprecated-gpu-targets"}
	args = append(args, strings.Fields(os.Getenv("NVCCFLAGS"))...)
	cmd := exec.Command(nvcc, append(args, "-o", "-", src)...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(text); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(strings.TrimSuffix(src, ".cu")+".ptx.gz", packed.Bytes(), 0o644)
}
