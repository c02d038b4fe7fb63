package main

import (
	"reflect"
	"slices"
	"testing"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
)

// TestAutoHasAllCapabilities compares the capabilities of auto with each mode's capabilities. auto
// must have all of them, because a check for auto must accept every valid file.
func TestAutoHasAllCapabilities(t *testing.T) {
	// Skip fields that describe restrictions, or features of the host's guard.
	skipped := []string{"Mode", "Nearest", "Untranslated", "Stateless", "AffinityUnbounded", "Slots", "SlotsEach", "MaxMovedRules", "EnforcesSources", "ResetsOverLimit"}
	auto := reflect.ValueOf(capabilities(config.AutoMode))
	for _, m := range modes.All() {
		one := reflect.ValueOf(m.Capabilities())
		for i := range auto.NumField() {
			name := auto.Type().Field(i).Name
			if slices.Contains(skipped, name) {
				continue
			}
			has := true
			switch a, b := auto.Field(i), one.Field(i); a.Kind() {
			case reflect.Bool:
				has = a.Bool() || !b.Bool()
			case reflect.Int:
				has = a.Int() >= b.Int()
			case reflect.Slice:
				for j := range b.Len() {
					found := false
					for k := range a.Len() {
						found = found || a.Index(k).Equal(b.Index(j))
					}
					has = has && found
				}
			default:
				t.Errorf("field %s of %T has a type that the test does not compare, want a case for it", name, balancer.Capabilities{})
			}
			if !has {
				t.Errorf("auto: %s = %v, want at least the capabilities of mode %s: %v", name, auto.Field(i), m.Name, one.Field(i))
			}
		}
	}
}
