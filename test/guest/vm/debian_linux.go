package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// debian is a source of Debian's kernels, which it downloads with apt-get.
type debian struct{}

// metaPackage depends on the newest stock kernel.
const metaPackage = "linux-image-amd64"

// newest returns PACKAGE_VERSION.
func (debian) newest(ctx context.Context) (string, error) {
	name, err := askApt(ctx)
	if err != nil && os.Geteuid() == 0 {
		if _, err := output(ctx, "", "apt-get", "update", "-qq"); err != nil {
			return "", err
		}
		name, err = askApt(ctx)
	}
	return name, err
}

func askApt(ctx context.Context) (string, error) {
	out, err := output(ctx, "", "apt-cache", "show", "--no-all-versions", metaPackage)
	if err != nil {
		return "", fmt.Errorf("looking for Debian's kernel (apt-get update may help): %w", err)
	}
	return parseDepends(out)
}

// parseDepends finds "linux-image-6.1.0-56-amd64 (= 6.1.192-2)" in the metapackage's description.
func parseDepends(text string) (string, error) {
	for line := range strings.Lines(text) {
		depends, ok := strings.CutPrefix(line, "Depends:")
		if !ok {
			continue
		}
		for one := range strings.SplitSeq(depends, ",") {
			words := strings.Fields(strings.NewReplacer("(", " ", ")", " ").Replace(one))
			if len(words) == 3 && words[1] == "=" && strings.HasPrefix(words[0], "linux-image-") {
				return words[0] + "_" + words[2], nil
			}
		}
	}
	return "", fmt.Errorf("%s does not say which kernel is the newest", metaPackage)
}

// unpack downloads the package and extracts vmlinuz and lib/modules/RELEASE into the directory.
func (debian) unpack(ctx context.Context, name, into string) error {
	pkg, version, _ := strings.Cut(name, "_")
	release := strings.TrimPrefix(pkg, "linux-image-")
	work := filepath.Join(into, "package")
	if err := os.Mkdir(work, 0o755); err != nil {
		return err
	}
	// By default apt downloads as the user _apt, which may not write here, and prints a warning.
	if _, err := output(ctx, work, "apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", pkg+"="+version); err != nil {
		return fmt.Errorf("downloading (apt-get update may help): %w", err)
	}
	files, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil || len(files) != 1 {
		return fmt.Errorf("apt-get has left %d packages", len(files))
	}
	tree := filepath.Join(work, "tree")
	if _, err := output(ctx, work, "dpkg-deb", "-x", files[0], tree); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(tree, "boot", "vmlinuz-"+release), filepath.Join(into, "vmlinuz")); err != nil {
		return err
	}
	lib := filepath.Join(tree, "lib")
	if _, err := os.Stat(lib); errors.Is(err, os.ErrNotExist) {
		lib = filepath.Join(tree, "usr", "lib") // since Debian 13
	}
	if err := os.Rename(lib, filepath.Join(into, "lib")); err != nil {
		return err
	}
	if err := prune(filepath.Join(into, "lib", "modules", release, "kernel")); err != nil {
		return err
	}
	if _, err := output(ctx, into, "depmod", "-b", into, release); err != nil {
		return err
	}
	return os.RemoveAll(work)
}

// prune removes drivers for hardware that the guest does not have. They are nine tenths of a kernel
// package.
func prune(modules string) error {
	for _, kind := range []string{"drivers", "drivers/net", "."} {
		entries, err := os.ReadDir(filepath.Join(modules, kind))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.IsDir() && !kept(kind, e.Name()) {
				if err := os.RemoveAll(filepath.Join(modules, kind, e.Name())); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func kept(kind, name string) bool {
	switch kind {
	case "drivers":
		return slices.Contains([]string{"net", "char", "virtio", "block"}, name)
	case "drivers/net":
		return !slices.Contains([]string{"ethernet", "wireless", "usb", "can", "arcnet", "phy"}, name)
	}
	return name != "sound"
}
