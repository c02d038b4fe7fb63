package daemon

import (
	"time"

	"vipd/cmd/internal/config"
	"vipd/store/etcd"
)

// configure takes what the fleet says of this node.
func (m *model) configure(nc etcd.NodeConfig) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.configuredLocked()
	m.nodeConfig = nc
	if m.configuredLocked().Mode != before.Mode {
		m.chooseAgain()
	}
	m.kick()
}

// chooseAgain has the mode be chosen again.
func (m *model) chooseAgain() {
	select {
	case m.modeChanged <- struct{}{}:
	default:
	}
}

// configured returns the configuration: the file as it was last read without errors, and over it what the fleet says of
// this node.
func (m *model) configured() config.Config {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.configuredLocked()
}

// configuredLocked is configured. The mode of the command line wins.
func (m *model) configuredLocked() config.Config {
	c, said := m.fileConfig, m.nodeConfig
	if said.Zone != "" {
		c.Zone = said.Zone
	}
	if said.Mode != "" && m.Mode == "" {
		c.Mode = config.ModeName(said.Mode)
	}
	return c
}

// waits reports whether a store that could not be read yet is waited for before what can be read is served. What a fleet
// has is waited for as long as it takes where an earlier vipd has left it in the kernel: it serves on there.
func (m *model) waits() bool {
	return time.Since(m.started) < storePatience || m.fleet != nil && m.chooser.Serving().Keeps && m.host.Inherited()
}
