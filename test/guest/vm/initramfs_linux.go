package vm

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// initScript is the first program of the guest. The compiler embeds it, and nothing changes it.
//
//go:embed init
var initScript []byte

// initramfs returns the guest's initial root file system. It has busybox, the init script, and the
// modules that are needed to read the host's files, numbered in loading order.
func initramfs(ctx context.Context, k kernel) ([]byte, error) {
	path, err := tool(busybox)
	if err != nil {
		return nil, err
	}
	shell, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var a archive
	for _, folder := range []string{"bin", "modules", "proc", "sys", "dev", "lower", "upper", "root"} {
		a.add(folder, 0o40755, nil)
	}
	a.add("bin/busybox", 0o100755, shell)
	a.add("init", 0o100755, initScript)
	modules, err := k.closure("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay")
	if err != nil {
		return nil, err
	}
	for i, module := range modules {
		content, err := k.read(ctx, module)
		if err != nil {
			return nil, fmt.Errorf("reading a module: %w", err)
		}
		a.add(fmt.Sprintf("modules/%02d.ko", i), 0o100644, content)
	}
	return a.end(), nil
}

// kernel is an unpacked kernel in the cache.
type kernel struct{ folder, release string }

func openKernel(folder string) (kernel, error) {
	releases, err := filepath.Glob(filepath.Join(folder, "lib", "modules", "*"))
	if err != nil || len(releases) != 1 {
		return kernel{}, fmt.Errorf("%s holds the modules of %d kernels: remove that folder", folder, len(releases))
	}
	return kernel{folder, filepath.Base(releases[0])}, nil
}

func (k kernel) packed() string  { return filepath.Join(k.folder, "vmlinuz") }
func (k kernel) modules() string { return filepath.Join(k.folder, "lib", "modules", k.release) }

// unpack extracts the kernel in vmlinuz (Documentation/arch/x86/boot.rst) to a file, and returns
// the image for qemu. If the file has no PVH entry, qemu must boot vmlinuz, which unpacks itself.
// Unpacking takes a third of the time of an emulated boot.
func (k kernel) unpack(ctx context.Context, file string) string {
	packed, err := os.ReadFile(k.packed())
	if err != nil || len(packed) < 0x250 {
		return k.packed()
	}
	at := 512*(1+int(packed[0x1f1])) + int(binary.LittleEndian.Uint32(packed[0x248:])) // the kernel follows the setup sectors
	cmd := exec.CommandContext(ctx, "xz", "-dc", "--single-stream")
	cmd.Stdin = bytes.NewReader(packed[min(at, len(packed)):])
	image, err := cmd.Output()
	if pvh := []byte("\x12\x00\x00\x00Xen\x00"); err != nil || !bytes.Contains(image, pvh) || os.WriteFile(file, image, 0o600) != nil {
		return k.packed()
	}
	return file
}

// closure lists the files of the modules and their dependencies, in a possible loading order.
func (k kernel) closure(names ...string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(k.modules(), "modules.dep"))
	if err != nil {
		return nil, err
	}
	builtin, err := os.ReadFile(filepath.Join(k.modules(), "modules.builtin"))
	if err != nil {
		return nil, err
	}
	needs := map[string][]string{} // maps a module to its file and its dependencies; each precedes its own dependencies
	for line := range strings.Lines(string(text)) {
		file, rest, _ := strings.Cut(line, ":")
		needs[moduleOf(file)] = append([]string{file}, strings.Fields(rest)...)
	}
	var files []string
	for _, name := range names {
		chain, ok := needs[name]
		if !ok && !strings.Contains(string(builtin), "/"+name+".ko") {
			return nil, fmt.Errorf("kernel %s has no module %s", k.release, name)
		}
		for _, file := range slices.Backward(chain) {
			if !slices.Contains(files, file) {
				files = append(files, file)
			}
		}
	}
	return files, nil
}

// moduleOf returns a file's module name: 9p for kernel/fs/9p/9p.ko.xz.
func moduleOf(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// read returns a module, uncompressed as the kernel expects it.
func (k kernel) read(ctx context.Context, module string) ([]byte, error) {
	file := filepath.Join(k.modules(), module)
	switch filepath.Ext(file) {
	case ".ko":
		return os.ReadFile(file)
	case ".xz": // since Debian 13
		text, err := output(ctx, "", "xz", "-dc", file)
		return []byte(text), err
	}
	return nil, errors.New("unknown compression: " + file)
}

// archive writes cpio's "newc" form, which kernels unpack
// (Documentation/driver-api/early-userspace).
type archive struct {
	bytes.Buffer
	inode int
}

func (a *archive) add(name string, mode int, content []byte) {
	a.inode++
	if name == trailer {
		a.inode = 0
	}
	fmt.Fprintf(a, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0, name)
	a.pad()
	a.Write(content)
	a.pad()
}

// trailer is the name of an archive's last entry.
const trailer = "TRAILER!!!"

func (a *archive) pad() { a.Write(make([]byte, -a.Len()&3)) }

func (a *archive) end() []byte {
	a.add(trailer, 0, nil)
	return a.Bytes()
}
