package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/validate/device"
)

func newVersionCmd(s *streams) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  exactly(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(s.out, versionLine())
			return err
		},
	}
}

func versionLine() string {
	cuda := "without CUDA"
	switch {
	case device.CUDA:
		cuda = "with CUDA"
	case companion() != "":
		cuda = "CUDA by " + companionName
	}
	return fmt.Sprintf("memplan %s (%s, %s/%s, %s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH, cuda)
}

// release is the version of a release (python/wheels.py and scripts/release/release.py set it).
var release string

// version returns the release's or the module's version, with the commit of a
// development build.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, kv := range info.Settings {
		if kv.Key == "vcs.revision" {
			return "devel " + kv.Value[:min(12, len(kv.Value))]
		}
	}
	return "devel"
}

// shells are the shells that completion writes scripts for.
var shells = []struct {
	name  string
	write func(root *cobra.Command, s *streams) error
}{
	{"bash", func(root *cobra.Command, s *streams) error { return root.GenBashCompletionV2(s.out, true) }},
	{"zsh", func(root *cobra.Command, s *streams) error { return root.GenZshCompletion(s.out) }},
	{"fish", func(root *cobra.Command, s *streams) error { return root.GenFishCompletion(s.out, true) }},
	{"powershell", func(root *cobra.Command, s *streams) error { return root.GenPowerShellCompletionWithDesc(s.out) }},
}

func newCompletionCmd(s *streams) *cobra.Command {
	var names []string
	for _, sh := range shells {
		names = append(names, sh.name)
	}
	return &cobra.Command{
		Use:   "completion <bash|zsh|fish|powershell>",
		Short: "Script that completes commands and flags in a shell",
		Example: `  source <(memplan completion bash)
  memplan completion zsh > "${fpath[1]}/_memplan"
  memplan completion fish > ~/.config/fish/completions/memplan.fish`,
		Args:      exactly(1, "the name of a shell"),
		ValidArgs: names,
		RunE: func(c *cobra.Command, args []string) error {
			for _, sh := range shells {
				if sh.name == args[0] {
					return sh.write(c.Root(), s)
				}
			}
			return fmt.Errorf("completion %q: %w", args[0], oneOf(args[0], names))
		},
	}
}
