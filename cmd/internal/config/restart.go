package config

import "reflect"

// Sections returns the names of the top-level settings and sections, such as "mode" and
// "addresses". It omits "services" and "vips", which belong to the store.
func Sections() (names []string) {
	all := reflect.TypeFor[Config]()
	for i := range all.NumField() {
		if name := all.Field(i).Tag.Get("toml"); name != "services" && name != "vips" {
			names = append(names, name)
		}
	}
	return names
}

func (c *Config) section(name string) any {
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("toml") == name {
			return v.Field(i).Interface()
		}
	}
	return nil
}

// Differs reports whether a section's value in next differs from its value in c.
func (c *Config) Differs(section string, next *Config) bool {
	return !reflect.DeepEqual(c.section(section), next.section(section))
}

// NeedsRestart reports whether the section differs in next, and a vipd that is running with c must
// be restarted to apply the new value.
func (c *Config) NeedsRestart(section string, next *Config) bool {
	switch section {
	case "mode", "strict_mode", "zone", "node_ports", "defaults", "services", "vips", "health", "resolver", "direct":
		return false
	case "node": // the name identifies this host in etcd
		return c.Store.Kind != FileStore && c.Differs(section, next)
	case "store":
		return c.Store.Kind != next.Store.Kind
	case "addresses":
		same := *next
		same.Addresses.Allowed, same.Addresses.AllowedEndpoints = c.Addresses.Allowed, c.Addresses.AllowedEndpoints
		return c.Differs(section, &same)
	}
	return c.Differs(section, next)
}
