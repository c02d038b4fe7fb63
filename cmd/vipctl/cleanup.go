package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/table"
	"vipd/dataplane/host"
	"vipd/dataplane/userspace"
)

func cleanupVerb() *verb {
	return &verb{
		name: "cleanup", brief: "remove everything that vipd ever created on this host",
		about: "Removes what vipd left on this host, also after a crash: rules and sets, addresses and their device, changed " +
			"sysctls (they get their old values back), and its files in run_dir and state_dir, with overrides and drains that " +
			"were said by hand. It removes nothing else, and says what it removed, a line each.\n\n" +
			"It works without a daemon, and refuses while one answers: stop that first. The config says where things are; " +
			"without one the defaults hold. With --mode only what that mode created is removed.",
		example: "sudo vipctl cleanup --dry-run",
		flags: []cli.Flag{
			modeFlag("remove only what this `MODE` created"),
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would be removed, and remove nothing"},
		},
		run: runCleanup,
	}
}

// cleaner removes one kind of leftovers, or only looks. It says what it does, such as "remove file /run/vipd/vipd.lock".
type cleaner func(ctx context.Context, dry bool) (done []string, err error)

func runCleanup(c *call) error {
	mode, err := c.mode()
	if err != nil {
		return err
	}
	conf, err := c.ownConfig()
	if err != nil {
		return err
	}
	dry := c.flags.Bool("dry-run")
	if !dry {
		if err := c.refuseWhileServing(); err != nil {
			return err
		}
	}
	prefix := ""
	if dry {
		prefix = "would "
	}
	var failed []error
	n := 0
	for _, clean := range cleaners(conf, mode) {
		done, err := clean(c, dry)
		failed = append(failed, err)
		n += len(done)
		for _, what := range done {
			failed = append(failed, c.print(prefix+table.Line(what)+"\n"))
		}
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	if n == 0 {
		return c.print("nothing to remove\n")
	}
	return nil
}

// ownConfig reads the config that says where things are. A mistake in it could lead to the wrong place: it is refused.
func (c *call) ownConfig() (config.Config, error) {
	file := c.flags.String("config")
	conf, problems, err := config.Load(file)
	if errors.Is(err, fs.ErrNotExist) && file == defaultConfig {
		return config.Default(), nil
	}
	if err != nil {
		return conf, err
	}
	for _, p := range problems {
		if p.Severity == balancer.SeverityError {
			return conf, fmt.Errorf("the config says where things are, and has a mistake: %s", p)
		}
	}
	return conf, nil
}

// refuseWhileServing returns an error if a daemon listens on the socket, or if that can't be known.
func (c *call) refuseWhileServing() error {
	socket, err := c.socket()
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{}).DialContext(c, "unix", socket)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("vipd is running and answers at %s: stop it first, or see what would be removed with --dry-run", socket)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil
	}
	return fmt.Errorf("looking whether vipd is running: %w", err)
}

// cleaners are those of a mode, or all; what comes later relies on records that the last one removes.
func cleaners(conf config.Config, mode config.ModeName) []cleaner {
	if mode == config.UserspaceMode {
		return []cleaner{userspace.Cleanup}
	}
	return []cleaner{userspace.Cleanup, hostCleaner(conf), filesCleaner(conf)}
}

// hostCleaner removes what all modes share: addresses, the guard, sysctls.
func hostCleaner(conf config.Config) cleaner {
	return func(ctx context.Context, dry bool) ([]string, error) {
		o := host.DefaultOptions() // what to remove does not depend on the others
		o.Interface, o.RunDir = conf.Addresses.Interface, conf.RunDir
		return host.Cleanup(ctx, o, dry)
	}
}

// filesCleaner removes what the daemon keeps in its folders, and the folders if nothing else is in them.
func filesCleaner(conf config.Config) cleaner {
	return func(_ context.Context, dry bool) ([]string, error) {
		files := []string{conf.API.Socket, filepath.Join(conf.RunDir, "vipd.lock")}
		for _, kept := range []string{"overrides.json", "memory.json"} {
			// Beside each there may be one that was set aside, or that a crash left half written.
			found, err := filepath.Glob(filepath.Join(escapeGlob(conf.StateDir), kept+"*"))
			if err != nil {
				return nil, fmt.Errorf("looking for files of vipd: %w", err)
			}
			files = append(files, found...)
		}
		var removed []string
		var failed []error
		for _, file := range files {
			if _, err := os.Lstat(file); err != nil {
				continue
			}
			if !dry {
				if err := os.Remove(file); err != nil {
					failed = append(failed, fmt.Errorf("removing vipd's files: %w", err))
					continue
				}
			}
			removed = append(removed, "remove file "+file)
		}
		if !dry {
			for _, dir := range []string{conf.RunDir, conf.StateDir} {
				if os.Remove(dir) == nil { // it fails while anything is in there
					removed = append(removed, "remove folder "+dir)
				}
			}
		}
		return removed, errors.Join(failed...)
	}
}

func escapeGlob(path string) string {
	return strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`).Replace(path)
}
