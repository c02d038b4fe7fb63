package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/folder"
	"vipd/cmd/internal/lockfile"
	"vipd/store/etcd/client"
)

// socketGroup is the group whose members may use the API's socket. It need not exist.
const socketGroup = "vipd"

// fileProblems returns problems with vipd's files, with its client certificate for etcd, and with
// the group in api.change_group.
func (d *Daemon) fileProblems() []balancer.Problem {
	all := d.lostFiles()
	if text := client.Config(d.config.Etcd).Expiry(time.Now()); text != "" && d.fleet != nil {
		at := balancer.Origin{File: d.ConfigFile}
		all = append(all, balancer.Problem{Severity: balancer.SeverityWarning, Origin: at, Field: "etcd.cert_file", Text: text})
	}
	if group := d.config.API.ChangeGroup; group != "" {
		if _, err := user.LookupGroup(group); err != nil {
			all = append(all, balancer.Problem{Severity: balancer.SeverityError, Origin: balancer.Origin{File: d.ConfigFile}, Field: "api.change_group",
				Text: fmt.Sprintf("this host has no group %q, so only root may change vipd: create it with groupadd %[1]s, or correct the name", group)})
		}
	}
	return all
}

// lostFiles returns a problem if another program has removed vipd's files. When it first notices
// this, it starts a full resync, which rewrites the ledger of kernel objects for the next process.
func (d *Daemon) lostFiles() []balancer.Problem {
	_, err := os.Stat(d.config.API.Socket)
	lost := d.socket != nil && errors.Is(err, fs.ErrNotExist) || lockfile.Lost(d.lock)
	if lost && !d.filesLost {
		d.engine.Resync()
	}
	if d.filesLost = lost; !lost {
		return nil
	}
	return []balancer.Problem{{Severity: balancer.SeverityError, Field: "run_dir", Text: fmt.Sprintf(
		"the running vipd's files were removed from %s or %s, so vipctl can't reach it: restart vipd (systemctl restart vipd)",
		d.config.RunDir, filepath.Dir(d.config.API.Socket))}}
}

// makeFolder creates a directory and its missing parents. It ignores the umask and lets every user
// enter the directories, because members of the socket's group must reach the socket.
func makeFolder(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	if around := filepath.Dir(path); around != path {
		if err := makeFolder(around); err != nil {
			return err
		}
	}
	if os.Mkdir(path, 0o755) != nil {
		return os.MkdirAll(path, 0o755) // nil if another process has just created it
	}
	return os.Chmod(path, 0o755)
}

// listenSocket opens the API's socket. If an existing socket answers, it belongs to another vipd
// with another run_dir, so listenSocket fails. If an existing socket doesn't answer, a dead vipd
// left it, so listenSocket replaces it.
func listenSocket(path string, log *slog.Logger) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := makeFolder(dir); err != nil {
		return nil, fmt.Errorf("creating the folder of api.socket: %w", err)
	}
	if err := folder.Check(dir); err != nil { // another user may have just created it
		return nil, fmt.Errorf("api.socket: %w", err)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSocket == 0 {
		return nil, fmt.Errorf("api.socket %s is in the way: it is not a socket; remove it or choose another path", path)
	}
	if c, err := net.Dial("unix", path); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("another vipd answers at api.socket %s: stop it, or give this vipd another socket", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("removing the socket of an earlier vipd: %w", err)
	}
	l, err := api.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("opening api.socket: %w", err)
	}
	if g, err := user.LookupGroup(socketGroup); err == nil {
		if gid, err := strconv.Atoi(g.Gid); err == nil {
			if err := os.Chown(path, -1, gid); err != nil {
				log.Warn("the API's socket can't be given to its group", "group", socketGroup, "err", err)
			}
		}
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(fmt.Errorf("opening api.socket to its group: %w", err), l.Close())
	}
	return l, nil
}
