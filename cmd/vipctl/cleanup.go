package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"vipd/balancer"
	"vipd/balancer/lib/atomicfile"
	"vipd/balancer/lib/sockerr"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/folder"
	"vipd/cmd/internal/lockfile"
	"vipd/cmd/internal/modes"
	"vipd/cmd/internal/netlock"
	"vipd/cmd/internal/table"
	"vipd/cmd/vipd/owner/cleanup"
	"vipd/dataplane/host"
)

func cleanupVerb() *cli.Verb {
	return &cli.Verb{
		Name: "cleanup", Brief: "remove everything that vipd ever created on this host",
		About: `Removes everything that vipd left on this host, even after a crash: rules and
sets, addresses and their device, changed sysctls (their previous values are
restored), and its files in run_dir and state_dir, including overrides and
drains. It removes nothing else, and prints what it removed. It needs root.

It works without a daemon. If vipd runs in this network namespace, with any
config, it refuses: stop vipd first, or use --force. It stops a running "vipd
owner" itself, so that other hosts own its VIPs. The config states where vipd's
files and objects are; without a config, the defaults apply. With --mode, it
removes only the objects that this mode created.`,
		Example: "sudo vipctl cleanup --dry-run",
		Values:  modeValues(),
		Flags: []cli.Flag{
			modeFlag("remove only the objects that this `MODE` created"),
			&cli.BoolFlag{Name: "dry-run", Usage: "show what would be removed, without removing it"},
			&cli.BoolFlag{Name: "force", Usage: "clean up even if vipd is running; its services then stop"},
		},
		Run: runCleanup,
	}
}

// A cleaner removes one kind of leftover state. If dry is true, it only lists them. It returns its
// actions, such as "remove file /run/vipd/vipd.lock".
type cleaner func(ctx context.Context, conf config.Config, dry bool) (done []string, err error)

func runCleanup(c *cli.Call) error {
	mode, err := mode(c)
	if err != nil {
		return err
	}
	conf, err := ownConfig(c)
	if err != nil {
		return err
	}
	if !c.Root {
		return errors.New("only root can see and remove vipd's objects: sudo vipctl cleanup")
	}
	if err := folder.CheckFiles(conf.RunDir); err != nil {
		return fmt.Errorf("run_dir: %w", err)
	}
	if err := folder.CheckFiles(conf.StateDir); err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	lock, err := netlock.Acquire(netlock.Holder{})
	if _, foreign := errors.AsType[*netlock.ForeignError](err); foreign {
		c.Note("%v", err)
		err = nil
	}
	defer func() { _ = lock.Close() }()
	if c.Flags.Bool("dry-run") {
		_ = lock.Close() // a dry run must not keep vipd from starting
		if err != nil {
			c.Note("%v, and uses the objects below", err)
		}
		return clean(c, conf, mode, true)
	}
	force := c.Flags.Bool("force")
	if err != nil && !force {
		return fmt.Errorf("%w: %s", err, wayOut)
	}
	held, err := holdRunDir(conf.RunDir, force)
	if err != nil {
		return err
	}
	defer func() { _ = held.Close() }() // the file was not written, so closing it can't lose data
	if !force {
		if err := refuseWhileServing(c); err != nil {
			return err
		}
	}
	return clean(c, conf, mode, false)
}

// wayOut is the advice to print if vipd is running.
const wayOut = "stop it first, see what would be removed with --dry-run, or remove it anyway with --force"

// clean runs a mode's cleaners, or all cleaners if mode is "", and prints their actions.
func clean(c *cli.Call, conf config.Config, mode config.ModeName, dry bool) error {
	prefix := ""
	if dry {
		prefix = "would "
	}
	var failed []error
	n := 0
	for _, clean := range cleaners(mode) {
		done, err := clean(c, conf, dry)
		failed = append(failed, err)
		n += len(done)
		for _, what := range grouped(done) {
			failed = append(failed, c.Print(prefix+table.Line(what)+"\n"))
		}
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	if n == 0 {
		return c.Print("nothing to remove\n")
	}
	return nil
}

// groupedFrom is the maximum number of consecutive similar lines that grouped does not join.
const groupedFrom = 10

// grouped replaces many consecutive lines that differ only in an address with a single line,
// because a cleanup may remove tens of thousands of addresses.
func grouped(done []string) []string {
	var out []string
	for i := 0; i < len(done); {
		before, _, behind := aroundAddress(done[i])
		var all []string
		for _, line := range done[i:] {
			b, address, e := aroundAddress(line)
			if address == "" || b != before || e != behind {
				break
			}
			all = append(all, address)
		}
		if len(all) <= groupedFrom {
			n := max(len(all), 1)
			out = append(out, done[i:i+n]...)
			i += n
			continue
		}
		out = append(out, fmt.Sprintf("%s%s and %d more%s", before, strings.Join(all[:3], ", "), len(all)-3, behind))
		i += len(all)
	}
	return out
}

// aroundAddress splits a line around the first word that is an address or a frontend's key. If no
// word is, address is "".
func aroundAddress(line string) (before, address, behind string) {
	words := strings.Split(line, " ")
	at := slices.IndexFunc(words, func(word string) bool {
		_, notAddress := netip.ParseAddr(word)
		_, notKey := balancer.ParseKey(word)
		return notAddress == nil || notKey == nil
	})
	if at < 0 {
		return line, "", ""
	}
	before, behind = strings.Join(words[:at], " ")+" ", " "+strings.Join(words[at+1:], " ")
	return before, words[at], strings.TrimRight(behind, " ")
}

// ownConfig reads the configuration, which names vipd's directories. It rejects a configuration
// with mistakes, because cleanup could remove the wrong files.
func ownConfig(c *cli.Call) (config.Config, error) {
	file := c.Flags.String("config")
	conf, problems, err := config.Load(file)
	if errors.Is(err, fs.ErrNotExist) && file == config.DefaultFile {
		return config.Default(), nil
	}
	if err != nil {
		return conf, err
	}
	if i := slices.IndexFunc(problems, isError); i >= 0 {
		return conf, fmt.Errorf("vipd's folders are unknown, because the configuration has a mistake: %s", problems[i])
	}
	return conf, nil
}

// holdRunDir acquires the daemon's lock file in run_dir, if it exists, so that no daemon starts
// there. It returns an error if a daemon holds the lock, unless force is true. This lock also
// reveals a daemon in another network namespace, or a daemon without permission to change this
// namespace.
func holdRunDir(dir string, force bool) (*os.File, error) {
	if _, err := os.Lstat(lockfile.Path(dir)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	lock, err := lockfile.Acquire(lockfile.Path(dir))
	switch {
	case errors.Is(err, lockfile.ErrHeld) && force:
		return nil, nil
	case errors.Is(err, lockfile.ErrHeld):
		return nil, fmt.Errorf("%s is locked, so vipd or another cleanup is running; %s", lockfile.Path(dir), wayOut)
	}
	return lock, err
}

// refuseWhileServing returns an error if a daemon listens on the socket, or if this can't be
// determined.
func refuseWhileServing(c *cli.Call) error {
	socket, err := c.Socket()
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{}).DialContext(c, "unix", socket)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("vipd is running and answers at %s: %s", socket, wayOut)
	case errors.Is(err, fs.ErrNotExist), sockerr.Is(err, syscall.ECONNREFUSED):
		return nil
	}
	return fmt.Errorf("checking whether vipd is running: %w", err)
}

// cleaners returns a mode's cleaner, or all cleaners if mode is "". The order matters, because the
// last cleaners remove records that earlier cleaners read.
func cleaners(mode config.ModeName) []cleaner {
	if m, ok := modes.Find(mode); ok {
		return []cleaner{m.Cleanup}
	}
	all := []cleaner{cleanFence, cleanHost}
	for _, m := range modes.All() {
		all = append(all, m.Cleanup)
	}
	return append(all, cleanFiles, cleanFolders)
}

// cleanFence stops vipd owner, and removes its rules and addresses.
func cleanFence(ctx context.Context, conf config.Config, dry bool) ([]string, error) {
	stopped, err := cleanup.Stop(ctx, conf.RunDir, dry)
	if err != nil {
		return nil, err
	}
	removed, err := cleanup.Remove(conf.RunDir, dry)
	return append(stopped, removed...), err
}

// cleanHost removes the parts that all modes share: addresses, the guard, and sysctls.
func cleanHost(ctx context.Context, conf config.Config, dry bool) ([]string, error) {
	return host.Cleanup(ctx, modes.HostOptions(conf), dry)
}

// cleanFiles removes the daemon's sockets, its saved counters in run_dir, and its files in
// state_dir, including backups and incomplete files. If the file at a socket's path is not a
// socket, it remains, because vipd did not create it.
func cleanFiles(_ context.Context, conf config.Config, dry bool) ([]string, error) {
	var files []string
	for _, path := range []string{conf.API.Socket, filepath.Join(conf.RunDir, api.OwnerSocket), filepath.Join(conf.RunDir, api.HandoverSocket)} {
		if info, err := os.Lstat(path); err != nil || info.Mode().Type() == fs.ModeSocket {
			files = append(files, path)
		}
	}
	counts := filepath.Join(conf.RunDir, "counts.json")
	files = append(append(files, filepath.Join(conf.RunDir, cleanup.LockFile), counts), atomicfile.Leftovers(counts)...)
	for _, name := range []string{"overrides.json", "memory.json", "health.json", "healthlease.json", "etcd.state", "files.state", "pending.json", "agents.json", "names.json", "ownership.json"} {
		path := filepath.Join(conf.StateDir, name)
		files = append(append(files, path, path+".broken"), atomicfile.Leftovers(path)...)
	}
	return removeFiles(files, dry)
}

func removeFiles(files []string, dry bool) (removed []string, err error) {
	var failed []error
	for _, file := range files {
		_, err := os.Lstat(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && !dry {
			err = os.Remove(file)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("removing vipd's files: %w", err))
			continue
		}
		removed = append(removed, "remove file "+file)
	}
	return removed, errors.Join(failed...)
}

// cleanFolders removes the lock file after all other files, and then the directories if they are
// empty.
func cleanFolders(_ context.Context, conf config.Config, dry bool) ([]string, error) {
	removed, err := removeFiles([]string{lockfile.Path(conf.RunDir)}, dry)
	for _, dir := range []string{conf.RunDir, conf.StateDir} {
		switch _, absent := os.Lstat(dir); {
		case err != nil || absent != nil:
		case dry:
			removed = append(removed, "remove folder "+dir+", if nothing else is in it")
		case os.Remove(dir) == nil: // fails if the directory is not empty
			removed = append(removed, "remove folder "+dir)
		}
	}
	return removed, err
}
