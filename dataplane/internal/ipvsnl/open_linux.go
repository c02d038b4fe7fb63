package ipvsnl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tableBits is the size of the connection table, as a power of two, if this package loads IPVS. The
// usual default of 12 results in long chains for more than 100,000 connections. A value of 20 uses
// 8 to 16 MiB of memory, and is older kernels' maximum.
const tableBits = 20

// maxLoading is how long loading the module may take.
const maxLoading = 30 * time.Second

// Open finds the kernel's IPVS. If necessary, it loads IPVS with a large connection table, and logs
// a message. If IPVS is unavailable, or this process may not use IPVS, Open returns ErrUnsupported
// with the reason and advice.
func Open(ctx context.Context, log *slog.Logger) (*Client, error) {
	k := newKernel(func(ctx context.Context) (*socket, error) {
		family, err := find(ctx, log)
		if err != nil {
			return nil, err
		}
		return openSocket(family)
	}, maxExchange)
	if _, err := k.Service(ctx, nobody); err != nil && !errors.Is(err, ErrNoService) {
		switch {
		case errors.Is(err, unix.EPERM):
			err = fmt.Errorf("%w: reading IPVS needs root or CAP_NET_ADMIN: %w", ErrUnsupported, err)
		case errors.Is(err, ErrUnsupported):
			err = errors.Unwrap(err) // without the name of the failed request
		}
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// find returns the number of the IPVS netlink family in the running kernel.
func find(ctx context.Context, log *slog.Logger) (uint16, error) {
	var failed error
	if !loaded() {
		failed = load(ctx, log)
	}
	// The kernel loads a missing family on request, but without vipd's option. It does so even for
	// containers that can't load modules.
	f, err := netlink.GenlFamilyGet("IPVS")
	switch {
	case err == nil && failed != nil:
		log.Warn("the kernel loaded IPVS with the default size of its connection table", "err", failed)
	case err != nil && failed != nil:
		return 0, failed
	case err != nil:
		return 0, fmt.Errorf("%w: its module is loaded, but the kernel has no netlink family IPVS: %w", ErrUnsupported, err)
	}
	return f.ID, nil
}

// loaded reports whether IPVS is loaded. It does not load IPVS.
func loaded() bool {
	_, err := os.Stat(tableFile)
	return err == nil
}

func load(ctx context.Context, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, maxLoading)
	defer cancel()
	option := fmt.Sprintf("conn_tab_bits=%d", tableBits)
	out, err := modprobe(ctx, "ip_vs", option)
	if err == nil {
		log.Info("loaded IPVS into the kernel", "module", "ip_vs", "option", option)
		return nil
	}
	said := strings.Join(strings.Fields(string(out)), " ")
	_, ok := errors.AsType[*exec.ExitError](err)
	if said == "" || !ok {
		said = strings.TrimSpace(said + " " + err.Error())
	}
	log.Debug("loading IPVS into the kernel failed", "module", "ip_vs", "said", said)
	return fmt.Errorf("%w: %s", ErrUnsupported, explainFailure(said))
}

func modprobe(ctx context.Context, args ...string) ([]byte, error) {
	program, err := exec.LookPath("modprobe")
	if err != nil {
		program = "/sbin/modprobe" // it may be missing from PATH
	}
	return exec.CommandContext(ctx, program, args...).CombinedOutput()
}

// explainFailure returns the reason why loading ip_vs failed, with advice. It parses modprobe's
// output. The reason is short, because it is shown next to the mode.
func explainFailure(said string) string {
	switch {
	case strings.Contains(said, "not found in directory"), strings.Contains(said, "could not open moddep file"), strings.Contains(said, "No such file or directory"):
		return fmt.Sprintf("kernel %s has no module ip_vs: install linux-modules-extra-%[1]s or your distribution's equivalent, then run `modprobe ip_vs`", release())
	case strings.Contains(said, "executable file not found"):
		return "it is not loaded, and modprobe is missing: install kmod, then run `modprobe ip_vs`"
	case strings.Contains(said, "Operation not permitted"), strings.Contains(said, "Permission denied"):
		return "it is not loaded, and this process may not load modules: run `modprobe ip_vs` as root on the host"
	}
	return "it is not loaded, and `modprobe ip_vs` fails: " + said + " (dmesg might show the reason)"
}

// release returns the running kernel's release.
func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "that runs"
	}
	return unix.ByteSliceToString(u.Release[:])
}
