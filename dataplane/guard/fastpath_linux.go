package guard

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nft"
)

// syncFastPath makes the kernel's flowtable match the mode and the devices. A running connection
// continues during each change, because its packets pass through netfilter while they miss the
// flowtable.
func (y *familyGuard) syncFastPath() error {
	p := &y.fast
	if !p.due {
		return nil
	}
	on := p.serves(y.mode)
	if _, exists := y.table.Shape[fastChain]; !exists && (!on || p.fault != nil) { // resync tries again
		p.due, p.refused = false, nil
		return nil
	}
	found, err := y.table.Flowtable(y.layout.table, fastTable)
	if err != nil {
		return err
	}
	if found != nil && (!on || found.Hardware != p.hardware) {
		var tx nft.Tx
		y.layout.deleteFastPath(&tx)
		if err := y.table.Commit(&tx); err != nil {
			return err
		}
		found = nil
	}
	p.due, p.fault, p.refused = false, nil, nil
	if !on {
		return nil
	}
	var tx nft.Tx
	y.layout.writeFastPath(&tx, y.bits, p)
	if err := y.table.Commit(&tx); err != nil {
		return y.noFastPath(err)
	}
	if found == nil {
		found = &nft.Flowtable{}
	}
	return y.syncFastDevices(found.Devices)
}

// noFastPath records the kernel's refusal of the flowtable, and returns any other error. Even after
// a refusal for lack of permission, the guard remains available, because the kernel has accepted
// its chains.
func (y *familyGuard) noFastPath(err error) error {
	var refused *nft.Error
	if !errors.As(err, &refused) {
		return err
	}
	if y.fast.fault = err; errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		y.fast.fault = fmt.Errorf("%w: %w", errNoFlowtables, err)
	}
	return nil
}

// syncFastDevices adds the missing devices to the flowtable, and removes unwanted devices. Each
// device has its own transaction, because the kernel refuses a device that has disappeared or whose
// driver can't offload connections. The next event about devices causes another attempt.
// Connections enter the flowtable only after the last step, which writes the set of the accepted
// devices.
func (y *familyGuard) syncFastDevices(have []string) error {
	want := y.fast.devices()
	for _, name := range have {
		if slices.Contains(want, name) {
			continue
		}
		var tx nft.Tx
		tx.DeleteFlowtable(y.layout.table, y.fast.flowtable(name))
		if err := y.table.Commit(&tx); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	var accepted []string
	for _, name := range want {
		if slices.Contains(have, name) {
			accepted = append(accepted, name)
			continue
		}
		var tx nft.Tx
		tx.AddFlowtable(y.layout.table, y.fast.flowtable(name))
		err := y.table.Commit(&tx)
		if err == nil {
			accepted = append(accepted, name)
		} else if err := y.noFastDevice(name, err); err != nil {
			return err
		}
	}
	var tx nft.Tx
	y.layout.addFastDevices(&tx, accepted)
	return y.table.Commit(&tx)
}

// noFastDevice records the kernel's refusal of a device. It ignores a device that no longer exists,
// and returns any other error.
func (y *familyGuard) noFastDevice(name string, err error) error {
	var refused *nft.Error
	if errors.Is(err, unix.ENOENT) {
		return nil
	} else if !errors.As(err, &refused) {
		return err
	}
	if y.fast.refused == nil {
		y.fast.refused = map[string]error{}
	}
	y.fast.refused[name] = err
	return nil
}

// fastPathChanged describes a flowtable or device that another program has removed. It returns ""
// if there is none.
func (y *familyGuard) fastPathChanged() (string, error) {
	if !y.fast.serves(y.mode) || y.fast.due || y.fast.fault != nil {
		return "", nil
	}
	found, err := y.table.Flowtable(y.layout.table, fastTable)
	if err != nil {
		return "", err
	}
	for _, name := range y.fast.devices() {
		if found == nil || y.fast.refused[name] == nil && !slices.Contains(found.Devices, name) {
			return fmt.Sprintf("devices of flowtable %s were removed", fastTable), nil
		}
	}
	return "", nil
}
