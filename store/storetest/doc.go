// Package storetest is the suite that every source of services must pass: it tests the guarantees
// that users of a source rely on.
//
//	func TestSource(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Place { return newPlace(t) })
//	}
//
// Every published snapshot of its tests must obey the same laws: revisions increase, equal values
// keep their pointers, and published values never change.
package storetest
