//! A map that stays as it is: inserting makes a new one, which shares all but one path with
//! the old (red-black trees after Okasaki, Journal of Functional Programming 9, 1999).

use std::cmp::Ordering;
use std::rc::Rc;

/// What the keys are.
pub(super) type Name = Rc<str>;

/// From names to values. Copies share everything.
#[derive(Clone)]
pub(super) struct Map<V>(Link<V>);

type Link<V> = Option<Rc<Node<V>>>;

/// Invariant 1: the keys on the left are smaller, those on the right larger.
/// Invariant 2: a red node has black children, but for the moment between an insertion and
/// the call of `balanced` on the parent. Every path down has as many black nodes.
struct Node<V> {
    red: bool,
    left: Link<V>,
    key: Name,
    value: V,
    right: Link<V>,
}

impl<V: Clone> Map<V> {
    pub(super) fn new() -> Map<V> {
        Map(None)
    }

    pub(super) fn get(&self, key: &str) -> Option<&V> {
        let mut link = &self.0;
        while let Some(node) = link {
            link = match key.cmp(&node.key) {
                Ordering::Less => &node.left,
                Ordering::Equal => return Some(&node.value),
                Ordering::Greater => &node.right,
            };
        }
        None
    }

    /// The map with this entry instead of any other of the same key.
    pub(super) fn insert(&self, key: &Name, value: V) -> Map<V> {
        let root = inserted(&self.0, key, value);
        Map(Some(if root.red { root.colored(false) } else { root }))
    }
}

fn inserted<V: Clone>(link: &Link<V>, key: &Name, value: V) -> Rc<Node<V>> {
    let Some(node) = link else {
        return node(true, None, (key.clone(), value), None);
    };
    let entry = (node.key.clone(), node.value.clone());
    match key.cmp(&node.key) {
        Ordering::Less => {
            let left = inserted(&node.left, key, value);
            balanced(node.red, Some(left), entry, node.right.clone())
        }
        Ordering::Equal => {
            self::node(node.red, node.left.clone(), (entry.0, value), node.right.clone())
        }
        Ordering::Greater => {
            let right = inserted(&node.right, key, value);
            balanced(node.red, node.left.clone(), entry, Some(right))
        }
    }
}

fn node<V>(red: bool, left: Link<V>, (key, value): (Name, V), right: Link<V>) -> Rc<Node<V>> {
    Rc::new(Node { red, left, key, value, right })
}

/// A node; where it is black and has a red child with a red child, the three in between
/// become a red node with two black ones.
fn balanced<V: Clone>(red: bool, left: Link<V>, entry: (Name, V), right: Link<V>) -> Rc<Node<V>> {
    if red {
        return node(red, left, entry, right);
    }
    if let Some(child) = red_node(&left) {
        if let Some(inner) = red_node(&child.left) {
            let last = node(false, child.right.clone(), entry, right);
            return node(true, Some(inner.colored(false)), child.entry(), Some(last));
        }
        if let Some(inner) = red_node(&child.right) {
            let first = node(false, child.left.clone(), child.entry(), inner.left.clone());
            let last = node(false, inner.right.clone(), entry, right);
            return node(true, Some(first), inner.entry(), Some(last));
        }
    }
    if let Some(child) = red_node(&right) {
        if let Some(inner) = red_node(&child.left) {
            let first = node(false, left, entry, inner.left.clone());
            let last = node(false, inner.right.clone(), child.entry(), child.right.clone());
            return node(true, Some(first), inner.entry(), Some(last));
        }
        if let Some(inner) = red_node(&child.right) {
            let first = node(false, left, entry, child.left.clone());
            return node(true, Some(first), child.entry(), Some(inner.colored(false)));
        }
    }
    node(red, left, entry, right)
}

fn red_node<V>(link: &Link<V>) -> Option<&Node<V>> {
    link.as_deref().filter(|node| node.red)
}

impl<V: Clone> Node<V> {
    fn entry(&self) -> (Name, V) {
        (self.key.clone(), self.value.clone())
    }

    fn colored(&self, red: bool) -> Rc<Node<V>> {
        node(red, self.left.clone(), self.entry(), self.right.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::{Link, Map};
    use std::collections::BTreeMap;

    /// The number of black nodes on each path.
    fn checked<V>(link: &Link<V>, parent_is_red: bool) -> usize {
        let Some(node) = link else { return 0 };
        assert!(!(node.red && parent_is_red), "a red node has a red child");
        let height = checked(&node.left, node.red);
        assert_eq!(height, checked(&node.right, node.red));
        height + usize::from(!node.red)
    }

    #[test]
    fn stays_balanced_and_keeps_old_versions() {
        let mut rng = fastrand::Rng::with_seed(1);
        let (mut map, mut model) = (Map::new(), BTreeMap::new());
        let mut versions = Vec::new();
        for value in 0..2000 {
            let key = rng.u32(0..1000).to_string();
            map = map.insert(&key.as_str().into(), value);
            model.insert(key, value);
            checked(&map.0, true);
            if value % 200 == 0 {
                versions.push((map.clone(), model.clone()));
            }
        }
        for (map, model) in versions {
            for key in (0..1000).map(|key| key.to_string()) {
                assert_eq!(map.get(&key), model.get(&key));
            }
        }
    }
}
