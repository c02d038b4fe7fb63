package nft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// Flowtable returns an existing flowtable with its devices' current names, or nil if it does not
// exist.
func (c *Conn) Flowtable(x Table, name string) (found *Flowtable, err error) {
	ask := func(m *message) {
		m.String(flowtableTable, x.Name)
		m.String(flowtableName, name)
	}
	err = c.list(msgGetFlowtable, x.Family, false, ask, func(body []byte) {
		found = &Flowtable{Name: name}
		for a := nlsock.In(body); a.Next(); {
			switch a.Kind {
			case flowtableFlags:
				found.Hardware = number(a.Value)&flowHardware != 0
			case flowtableHook:
				found.Devices = hookDevices(a.Value)
			}
		}
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading flowtable %s of table %s: %w", name, x, err)
	}
	return found, nil
}

func hookDevices(hook []byte) (names []string) {
	for a := nlsock.In(hook); a.Next(); {
		if a.Kind != flowtableDevices {
			continue
		}
		for device := nlsock.In(a.Value); device.Next(); {
			names = append(names, text(device.Value))
		}
	}
	return names
}
