// A method keeps its colour: it is found from its name, and the next free one is taken when two names would share.

const slots = new Map();

function hashOf(name) {
  let hash = 0x811c9dc5;
  for (let i = 0; i < name.length; i += 1) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
  return hash >>> 0;
}

/** Give each new name its place in a palette of `size`, in the order of the names. */
export function learn(names, size) {
  const taken = new Set(slots.values());
  for (const name of [...names].sort()) {
    if (slots.has(name)) continue;
    let slot = hashOf(name) % size;
    if (taken.size < size) while (taken.has(slot)) slot = (slot + 1) % size;
    slots.set(name, slot);
    taken.add(slot);
  }
}

export const colourOf = (name, palette) => palette[(slots.get(name) ?? 0) % palette.length];
