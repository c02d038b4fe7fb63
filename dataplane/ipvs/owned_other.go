//go:build !linux

package ipvs

import "vipd/balancer"

// Owned finds nothing.
func Owned(string) ([]balancer.Key, error) { return nil, nil }
