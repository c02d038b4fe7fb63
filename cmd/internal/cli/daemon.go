package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/lockfile"
	"vipd/cmd/internal/netlock"
	"vipd/store/tomlfile"
)

// Client returns the client for the daemon that the flags name. If the configuration exists but
// can't be read, Client uses the default socket, so it can still find a running daemon.
func (c *Call) Client() (*api.Client, error) {
	if c.Daemon != nil {
		return c.Daemon, nil
	}
	file := c.Flags.String("config")
	socket, err := c.Socket()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s does not exist, so the daemon's socket is unknown: set --config to the configuration file, or --socket to the socket", file)
	}
	if err != nil {
		socket = config.Default().API.Socket
		if path, ok := errors.AsType[*fs.PathError](err); ok && !errors.Is(err, fs.ErrPermission) {
			c.Note("%s can't be read (%v); querying the daemon at %s", file, path.Err, socket)
		}
	}
	c.Daemon = api.NewClient(socket)
	c.Daemon.Absent = func() string { return c.whyAbsent(socket, err) }
	return c.Daemon, nil
}

// whyAbsent describes a daemon whose socket is missing. unread is the reason why the configuration,
// which may name another socket, could not be read.
func (c *Call) whyAbsent(socket string, unread error) string {
	if errors.Is(unread, fs.ErrPermission) {
		return fmt.Sprintf("the socket does not exist, and you have no permission to read the config %s, which might set another socket: use sudo, or set --socket",
			c.Flags.String("config"))
	}
	conf, _, err := config.Load(c.Flags.String("config"))
	if err != nil {
		conf = config.Default()
	}
	if !SamePlace(conf.API.Socket, socket) {
		return ""
	}
	pid := lockfile.Holder(lockfile.Path(conf.RunDir))
	if h := netlock.Ask(); pid == 0 && h.RunDir != "" {
		switch {
		case SamePlace(h.RunDir, conf.RunDir):
			pid = h.PID // the daemon's run_dir was removed, including its lock file
		case conf.RunDir == config.Default().RunDir: // for example because its configuration is empty now
			return fmt.Sprintf("the socket does not exist, but vipd (pid %d) runs with run_dir %s: set --config to its config, or --socket to its socket",
				h.PID, h.RunDir)
		}
	}
	switch note := lockfile.Noted(lockfile.Path(conf.RunDir)); {
	case pid != 0 && note != "":
		return fmt.Sprintf("vipd (pid %d) %s", pid, note)
	case pid != 0:
		return fmt.Sprintf("the socket was removed, but vipd runs (pid %d): restart vipd", pid)
	}
	return ""
}

// readPart decodes a configuration file into the struct that into points to. It ignores mistakes in
// other parts of the file, so vipctl can still find the daemon and etcd.
func readPart(file string, into any) error {
	text, err := tomlfile.ReadFile(file)
	if err == nil {
		err = tomlfile.Decode(file, text, into)
	}
	return err
}

// socketConfig is the part of the configuration that names the socket.
type socketConfig struct {
	API struct {
		Socket string `toml:"socket"`
	} `toml:"api"`
}

// Socket returns the path of the daemon's socket from the flag, the environment or the
// configuration, or else the default path. It reads only the configuration lines that name a
// socket, so it ignores mistakes in other lines.
func (c *Call) Socket() (string, error) {
	if s := c.Flags.String("socket"); s != "" {
		return s, nil
	}
	file := c.Flags.String("config")
	text, err := tomlfile.ReadFile(file)
	if err != nil && (!errors.Is(err, fs.ErrNotExist) || file != config.DefaultFile) {
		return "", fmt.Errorf("looking for the daemon's socket in its config: %w (or set --socket)", err)
	}
	var conf socketConfig
	tomlfile.DecodeLines(text, "socket", &conf)
	return cmp.Or(c.besideConfig(conf.API.Socket), config.Default().API.Socket), nil
}

// besideConfig resolves a path in the configuration relative to the configuration's directory, as
// the daemon does. It returns "" for an empty path.
func (c *Call) besideConfig(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(c.Flags.String("config")), path)
}

// SamePlace reports whether two paths refer to the same file. If a file is missing, it compares the
// paths.
func SamePlace(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	if errX == nil && errY == nil {
		return os.SameFile(x, y)
	}
	absolute := func(path string) string {
		if p, err := filepath.Abs(path); err == nil {
			return p
		}
		return filepath.Clean(path)
	}
	return absolute(a) == absolute(b)
}
