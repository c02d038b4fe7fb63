package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"vipd/balancer"
	"vipd/balancer/failover"
	"vipd/balancer/failover/vrrp"
	"vipd/balancer/lib/wake"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/folder"
	"vipd/cmd/internal/version"
	"vipd/cmd/vipd/daemon"
	"vipd/cmd/vipd/owner"
	"vipd/store/etcd/client"
)

// ownerVerb is the first argument that makes the program the owner of VIPs instead of the daemon.
const ownerVerb = "owner"

// failedPause is how long an owner that could not start waits before it exits. Without this pause,
// repeated restarts would fill the log.
const failedPause = 5 * time.Second

// runOwner runs vipd owner until a signal stops it, and returns the exit code.
func runOwner(args []string, stdout, stderr io.Writer) int {
	journal := isJournal(stderr)
	queue := startLogQueue(stderr, 0) // before any line is written
	defer queue.end()
	stderr = queue
	complain := func(err error) {
		for line := range strings.Lines(err.Error()) {
			fmt.Fprintf(stderr, "vipd owner: %s\n", strings.TrimSpace(line))
		}
	}
	var a arguments
	f := flag.NewFlagSet("vipd owner", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&a.config, "config", config.DefaultFile, "read the configuration from `FILE`")
	f.StringVar(&a.level, "log-level", "info", "log messages of `LEVEL` and above: debug, info, warn, error")
	f.StringVar(&a.format, "log-format", "text", "write the log in `FORMAT`: text or json")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, "vipd owner holds VIPs with hold = \"one\" while this host owns them.\n\nFlags:\n")
		f.VisitAll(func(one *flag.Flag) { describe(stdout, one) })
		return exitDone
	case err != nil || f.NArg() > 0:
		complain(errors.Join(err, errors.New("only flags are accepted; see vipd owner --help")))
		return exitUsage
	}
	log, err := queue.log(journal, a.level, a.format)
	if err != nil {
		complain(err)
		return exitUsage
	}
	o, runDir, err := ownerOptions(a.config, log)
	if err != nil {
		complain(err)
		return exitConfig
	}
	o.Log = log
	for _, err := range owner.SetRealtime() {
		log.Warn("vipd owner might react too late on a busy host", "err", err)
		o.Hindered = append(o.Hindered, err.Error())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	began := time.Now()
	if err := owner.New(o, runDir).Run(ctx); err != nil {
		complain(err)
		if time.Since(began) < time.Second { // systemd restarts it immediately, as after a crash
			wake.Sleep(ctx, failedPause)
		}
		return exitFailed
	}
	return exitDone
}

// ownerOptions reads the configuration. If the file is invalid, it returns vipd's last valid
// configuration, so this host continues to own VIPs after a restart.
func ownerOptions(file string, log *slog.Logger) (o owner.Options, runDir string, err error) {
	c, mistake, err := daemon.StartConfig(file, false)
	if mistake != nil {
		log.Error("starting with the last good configuration", "file", file, "err", mistake)
	}
	switch {
	case err != nil:
		return o, "", err
	case !c.Ownership.Enabled:
		return o, "", fmt.Errorf("%s: this host owns no VIPs: set ownership.enabled = true, or do not start vipd owner", file)
	}
	if c.Node == "" {
		if c.Node, err = os.Hostname(); err != nil {
			return o, "", fmt.Errorf("finding the host's name (setting node in %s avoids this): %w", file, err)
		}
	}
	if err := folder.CheckFiles(c.RunDir); err != nil {
		return o, "", fmt.Errorf("run_dir: %w", err)
	}
	if err := folder.Make(c.RunDir, func(path string) error { return os.MkdirAll(path, 0o755) }); err != nil {
		return o, "", fmt.Errorf("creating vipd's folder (set run_dir to a folder that this user can write to): %w", err)
	}
	w := c.Ownership
	o = owner.Options{
		Node: c.Node, Zone: c.Zone, Version: version.Version, Weight: w.Weight, Timing: failover.NewTiming(w.Detect),
		Etcd: client.Config(c.Etcd), Interfaces: w.Interfaces, Listen: w.Listen, Reach: w.Reach, AnnounceEvery: w.AnnounceEvery,
	}
	if c.Decider() == config.ByVRRP {
		o.VRRP = vrrpOptions(&c)
	}
	return o, c.RunDir, nil
}

// vrrpOptions returns the options of an owner that uses VRRP.
func vrrpOptions(c *config.Config) *owner.VRRPOptions {
	var groups []vrrp.Group
	o := &owner.VRRPOptions{ReachTakes: c.Ownership.ReachTakes}
	for _, g := range c.Ownership.VRRP {
		groups = append(groups, vrrp.Group{Interval: g.AdvertInterval})
		if g.Interface != "" {
			o.Interfaces = append(o.Interfaces, g.Interface)
		}
	}
	slices.Sort(o.Interfaces)
	o.Gate = vrrp.GateTime(groups)
	o.Groups = func(report *api.OwnerReport) ([]config.VRRPGroup, []balancer.Problem) {
		return c.VRRPGroupsOf(report.Groups())
	}
	return o
}
