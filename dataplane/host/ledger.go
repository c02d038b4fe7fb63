package host

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"vipd/balancer/lib/atomicfile"
)

// ledgerFile is the ledger's file name in the run folder.
const ledgerFile = "host.json"

// ledger records the objects that vipd created or changed on this host. An object is recorded
// before it is first changed, so the ledger may name objects that do not exist, but never omits an
// existing object.
type ledger struct {
	// Boot and Namespace identify the boot and the network namespace for which the ledger is valid.
	Boot      string `json:"boot"`
	Namespace string `json:"namespace"`
	// Links names the devices that vipd created.
	Links map[string]bool `json:"links,omitempty"`
	// Addresses maps the addresses that vipd added to their devices.
	Addresses map[netip.Addr]string `json:"addresses,omitempty"`
	// Leaving maps an address to the devices from which it is being moved. They may still have the
	// address.
	Leaving map[netip.Addr][]string `json:"leaving,omitempty"`
	// Sysctls holds the sysctls that vipd changed.
	Sysctls map[string]sysctlRecord `json:"sysctls,omitempty"`
	// Direct holds the addresses that vipd added to lo for direct routing.
	Direct map[netip.Addr]bool `json:"direct,omitempty"`

	path string
	// changed reports whether the file differs from the ledger.
	changed bool
	// written is the last written JSON of Addresses, extended by addresses added since. It is nil
	// if an address was moved or removed since.
	written []byte
}

// sysctlRecord holds a sysctl's value before vipd changed it, and the value that vipd set.
type sysctlRecord struct {
	Old string `json:"old"`
	Set string `json:"set"`
}

// loadLedger reads the ledger in a folder. It returns an empty ledger if the file belongs to
// another boot or namespace. If the file can't be read, it returns an empty ledger and the error.
func loadLedger(dir, boot, namespace string) (*ledger, error) {
	fresh := func() *ledger {
		return &ledger{
			Boot: boot, Namespace: namespace, path: filepath.Join(dir, ledgerFile),
			Links: map[string]bool{}, Addresses: map[netip.Addr]string{}, Leaving: map[netip.Addr][]string{}, Sysctls: map[string]sysctlRecord{},
			Direct: map[netip.Addr]bool{},
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
		l = fresh()
		l.changed = true
		return l, fmt.Errorf("reading the ledger %s: %w", l.path, err)
	}
	if l.Boot != boot || l.Namespace != namespace || l.Links == nil || l.Addresses == nil || l.Leaving == nil || l.Sysctls == nil || l.Direct == nil {
		l = fresh() // null instead of a map is invalid, because vipd never writes it
		l.changed = true
	}
	return l, nil
}

func (l *ledger) setLink(name string) {
	l.changed = l.changed || !l.Links[name]
	l.Links[name] = true
}

func (l *ledger) dropLink(name string) {
	l.changed = l.changed || l.Links[name]
	delete(l.Links, name)
}

func (l *ledger) setSysctl(name string, r sysctlRecord) {
	l.changed = l.changed || l.Sysctls[name] != r
	l.Sysctls[name] = r
}

func (l *ledger) dropSysctl(name string) {
	if _, ok := l.Sysctls[name]; ok {
		l.changed = true
		delete(l.Sysctls, name)
	}
}

// setAddress records an address that is on a device or is about to be added to it. If the address
// was on another device, it counts as leaving that device until noteLeft.
func (l *ledger) setAddress(a netip.Addr, device string) {
	old := l.Addresses[a]
	if old == device {
		return
	}
	l.changed = true
	l.noteLeft(a, device)
	if old != "" {
		l.Leaving[a], l.written = append(l.Leaving[a], old), nil
	} else if l.written != nil {
		l.written = appendAddress(l.written, a, quote(device))
	}
	l.Addresses[a] = device
}

// noteLeft records that an address has been removed from a device.
func (l *ledger) noteLeft(a netip.Addr, device string) {
	i := slices.Index(l.Leaving[a], device)
	if i < 0 {
		return
	}
	l.changed = true
	if l.Leaving[a] = slices.Delete(l.Leaving[a], i, i+1); len(l.Leaving[a]) == 0 {
		delete(l.Leaving, a)
	}
}

func (l *ledger) dropAddress(a netip.Addr) {
	if _, ok := l.Addresses[a]; ok {
		l.changed, l.written = true, nil
		delete(l.Addresses, a)
		delete(l.Leaving, a)
	}
}

// devices returns all devices to which vipd may have added an address.
func (l *ledger) devices(a netip.Addr) []string {
	device, ok := l.Addresses[a]
	if !ok {
		return nil
	}
	return append(slices.Clone(l.Leaving[a]), device)
}

// setDirect records an address that is on lo for direct routing or is about to be added to it.
func (l *ledger) setDirect(a netip.Addr) {
	l.changed = l.changed || !l.Direct[a]
	l.Direct[a] = true
}

func (l *ledger) dropDirect(a netip.Addr) {
	l.changed = l.changed || l.Direct[a]
	delete(l.Direct, a)
}

// save writes the ledger if it has changed. If the ledger is empty, save removes the file.
func (l *ledger) save() error {
	if !l.changed {
		return nil
	}
	if l.empty() {
		if err := atomicfile.Remove(l.path); err != nil && !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("removing the ledger: %w", err)
		}
		l.changed = false
		return nil
	}
	text, err := l.text()
	if err != nil {
		return fmt.Errorf("writing the ledger: %w", err)
	}
	if err := atomicfile.Write(l.path, atomicfile.ThisBoot, func(w *bufio.Writer) error { _, err := w.Write(text); return err }); err != nil {
		return fmt.Errorf("writing the ledger: %w", err)
	}
	l.changed = false
	return nil
}

// text returns the ledger as JSON. The ledger is written after each addition, and may contain tens
// of thousands of addresses. So addresses are unsorted, and text encodes only new addresses.
func (l *ledger) text() ([]byte, error) {
	few := *l
	few.Addresses = nil
	text, err := json.MarshalIndent(&few, "", "\t")
	if err != nil || len(l.Addresses) == 0 {
		return text, err
	}
	if l.written == nil {
		device, quoted := "", quote("")
		for a, d := range l.Addresses {
			if d != device {
				device, quoted = d, quote(d)
			}
			l.written = appendAddress(l.written, a, quoted)
		}
	}
	text = append(bytes.TrimSuffix(text, []byte("\n}")), ",\n\t\"addresses\": {"...)
	return append(append(text, l.written[:len(l.written)-1]...), "\n\t}\n}"...), nil
}

func quote(device string) []byte {
	quoted, _ := json.Marshal(device) // encoding a string never fails
	return quoted
}

func appendAddress(text []byte, a netip.Addr, device []byte) []byte {
	text = append(a.AppendTo(append(text, "\n\t\t\""...)), "\": "...)
	return append(append(text, device...), ',')
}

func (l *ledger) empty() bool {
	return len(l.Links) == 0 && len(l.Addresses) == 0 && len(l.Sysctls) == 0 && len(l.Direct) == 0
}
