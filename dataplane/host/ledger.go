package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
)

// ledgerFile is its name in the run folder.
const ledgerFile = "host.json"

// ledger is the record of what vipd made or changed on this host. It is written before each first change, so that it
// may name more than is there, and never less.
type ledger struct {
	// Boot and Namespace say for which run of the kernel and network namespace the rest holds.
	Boot      string `json:"boot"`
	Namespace string `json:"namespace"`
	// Links are the devices that vipd made.
	Links map[string]bool `json:"links,omitempty"`
	// Addresses are those that vipd added, with their devices.
	Addresses map[netip.Addr]string `json:"addresses,omitempty"`
	// Sysctls are those that vipd changed.
	Sysctls map[string]sysctlRecord `json:"sysctls,omitempty"`

	path    string
	written []byte
}

// sysctlRecord is a sysctl's value before vipd, and the one that vipd gave it.
type sysctlRecord struct {
	Old string `json:"old"`
	Set string `json:"set"`
}

// loadLedger reads the ledger of the folder. One of another boot or namespace says nothing of this one, and is taken
// for empty; so is one that can't be read, which is returned with the error.
func loadLedger(dir, boot, namespace string) (*ledger, error) {
	fresh := func() *ledger {
		return &ledger{
			Boot: boot, Namespace: namespace, path: filepath.Join(dir, ledgerFile),
			Links: map[string]bool{}, Addresses: map[netip.Addr]string{}, Sysctls: map[string]sysctlRecord{},
		}
	}
	l := fresh()
	text, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, fmt.Errorf("reading the ledger: %w", err)
	}
	if err := json.Unmarshal(text, l); err != nil {
		return fresh(), fmt.Errorf("reading the ledger %s: %w", l.path, err)
	}
	if l.Boot != boot || l.Namespace != namespace {
		return fresh(), nil
	}
	l.written = text
	return l, nil
}

// save writes the ledger if it differs from what was written last. An empty one is no file.
func (l *ledger) save() error {
	if l.empty() {
		l.written = nil
		if err := os.Remove(l.path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("removing the ledger: %w", err)
		}
		return nil
	}
	text, err := json.MarshalIndent(l, "", "\t")
	if err != nil {
		return fmt.Errorf("writing the ledger: %w", err)
	}
	if string(text) == string(l.written) {
		return nil
	}
	if err := replaceFile(l.path, text); err != nil {
		return fmt.Errorf("writing the ledger: %w", err)
	}
	l.written = text
	return nil
}

func (l *ledger) empty() bool {
	return len(l.Links) == 0 && len(l.Addresses) == 0 && len(l.Sysctls) == 0
}

// replaceFile puts text in the place of path at once: who reads it sees the old text or the new one. It is not synced
// to the disk, for it means nothing after the machine has stopped.
func replaceFile(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
