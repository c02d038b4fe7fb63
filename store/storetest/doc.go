// Package storetest contains a test suite for sources of services. Every implementation of
// store.Source must pass it.
//
//	func TestSource(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Place { return newPlace(t) })
//	}
//
// In each test, all published snapshots must obey the same rules: revisions increase, equal values
// keep their pointers, and published values never change.
package storetest
