//go:build !cuda

package monitor

func openNVML(Target) (Source, error) { return nil, errNotBuilt }
